"""Steps that are launched before those in front of them are done; and what a scheduler makes of that."""

import random
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_core.intake.validation import Limits
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import Result, decode_result
from kernels.triton.requirements import BUFFER_BYTES
from kernels.triton_ops import TritonOps
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from pagewire.v1.generation_pb2 import BeamSearch, LogprobOptions
from tests.checkpoints import EOS_ID, VOCAB_SIZE
from tests.engine_core.fakes import Ledger, add_request, make, run
from tests.kernels.triton.references import copy_segments_reference
from tests.worker.cuda.host_devices import SMALL, LateDevice, interpret, load_on, load_on_the_host
from tests.worker.fakes import initialize, load_on_a_cpu
from worker.cuda.backend import CudaBackend, copy_parts
from worker.cuda.device import Run
from worker.cuda.rows import DeviceRows
from worker.loop import StepRunner
from worker.step.plan_reader import NO_TOKEN_COLUMN, apply_changes
from worker.step.rows import RowTable
from worker.step.warmup_plans import prefill_plan

Checkpoints = Callable[..., Path]
SHALLOW = {"num_hidden_layers": 1, "max_position_embeddings": 96}
BEAMS = BeamSearch(width=2, length_penalty=1, early_stopping=False)
PROMPT = [5, 100, 33, 210, 7, 8, 9, 250]
SYSTEM = [7 + 3 * i for i in range(21)]


def begin(prompts: list[list[int]]) -> worker_pb2.StepPlan:
    """Rows that compute their prompts, each in blocks of its own, and sample."""
    plan = prefill_plan([len(prompt) for prompt in prompts], SMALL["block_size"])
    for new, prompt in zip(plan.new_rows, prompts, strict=True):
        new.token_ids, new.blocks = pack_u32(prompt), pack_u32([new.row])
    return plan


def decode(rows: list[int], lengths: list[int]) -> worker_pb2.StepPlan:
    """One more token of each."""
    return worker_pb2.StepPlan(
        rows=pack_u32(rows),
        starts=pack_u32(lengths),
        counts=pack_u32([1] * len(rows)),
        sample_rows=pack_u32(rows),
        sample_sources=pack_u32(range(len(rows))),
    )


class InProcess:
    """A scheduler that plans ahead, and a runner, without sockets."""

    def __init__(self, runner: StepRunner, ready: worker_pb2.Ready, budget: int) -> None:
        self.runner = runner
        self._plans: deque[Plan] = deque()
        rows, blocks, size = SMALL["max_num_seqs"], ready.num_blocks, SMALL["block_size"]
        self.scheduler = Scheduler(
            num_blocks=blocks,
            block_size=size,
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
            num_host_blocks=ready.num_host_blocks,
        )
        self.limits = Limits(VOCAB_SIZE, 96, rows, frozenset([EOS_ID]), blocks, size)

    def submit(self, plan: Plan) -> None:
        """See engine_core.core.Worker."""
        self._plans.append(plan)
        self.runner.launch(worker_pb2.StepPlan.FromString(encode_plan(plan).SerializeToString()))

    def collect(self) -> Result:
        """See engine_core.core.Worker."""
        return decode_result(self.runner.finish(), self._plans.popleft())

    def outputs(self, messages: list[engine_pb2.AddRequest], ahead: bool) -> Ledger:
        """All at once, to the end."""
        ledger = Ledger()
        for message in messages:
            self.scheduler.add(make(message, self.limits))
        run(self.scheduler, self, ledger, ahead=ahead)  # type: ignore[arg-type]
        return ledger


def requests() -> list[engine_pb2.AddRequest]:
    """Greedy, drawn, penalized, several sequences, beams, log-probabilities. The first two grow until one of
    them has to give way; others have a common beginning."""
    messages = [
        add_request(1, 14, max_tokens=20, ignore_eos=True, logprobs=LogprobOptions(top_n=1)),
        add_request(2, 15, max_tokens=19, ignore_eos=True, logprobs=LogprobOptions(top_n=2)),
        add_request(3, SYSTEM + [5], max_tokens=4, n=2),
        add_request(4, SYSTEM, max_tokens=3, beams=BEAMS),
        add_request(5, 12, max_tokens=3, prompt_logprobs=LogprobOptions(), prompt_logprobs_start=4),
    ]
    messages[1].sampling.temperature, messages[1].sampling.repetition_penalty = 1.0, 1.2
    messages[2].sampling.temperature, messages[2].sampling.top_p = 0.8, 0.9
    messages[0].sampling.temperature = messages[4].sampling.temperature = 0
    return messages


def capture(backend: CudaBackend, device: LateDevice) -> Counter[str]:
    """Captures graphs for steps of up to 24 tokens and for sampling. Returns how often each kind has run."""
    runs = Counter[str]()

    def counting(kind: str) -> Callable[[Run], Run]:
        def capture(run: Run) -> Run:
            def replay() -> torch.Tensor:
                runs[kind] += 1
                return run()

            return replay

        return capture

    device.capture = counting("step")  # type: ignore[method-assign]
    for size in (24, 12, 6, 3):
        backend.capture(size)
    device.capture = counting("sampling")  # type: ignore[method-assign]
    for size in (8, 4):
        backend.capture_sampling(size)
    return runs


def test_a_step_ahead_of_a_late_device(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """A pool for half of them, so that rows are preempted, swapped and resumed; a plan is launched while
    the step before it is under way, and nothing is read before it is there. Steps run in graphs; rows that
    ask for more than a draw and filters are sampled behind them, kernel by kernel. The CPU's path gives the
    same."""
    command = initialize(
        checkpoint("llama", **SHALLOW), **(SMALL | {"num_blocks": 5, "swap_space_bytes": 1 << 20})
    )
    cpu_runner, cpu_ready = load_on_a_cpu(command)
    cpu = InProcess(cpu_runner, cpu_ready, budget=24)
    theirs = cpu.outputs(requests(), ahead=True)
    interpret(monkeypatch)
    device = LateDevice()
    runner, ready = load_on(device, command)
    runs = capture(runner.backend, device)
    late = InProcess(runner, ready, budget=24)
    ours = late.outputs(requests(), ahead=True)
    assert (ours.tokens, ours.ends) == (theirs.tokens, theirs.ends)
    for mine, other in ((ours.scores, theirs.scores), (ours.prompt_scores, theirs.prompt_scores)):
        assert mine.keys() == other.keys()
        for key in mine:
            assert [one.ids for one in mine[key]] == [one.ids for one in other[key]]
            assert [one.logprob for one in mine[key]] == pytest.approx(
                [one.logprob for one in other[key]], abs=1e-4
            )
    assert late.scheduler.num_preemptions > 0 and late.scheduler.swap.num_swapped_out > 0
    assert {event.waits for event in device.events} == {1}
    assert runs["step"] > runs["sampling"] > 3


def test_a_sampled_token_does_not_pass_the_host(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """Each step computes the token of the one before it, whose event has not passed yet: the tokens are those
    of the CPU's path, which computes one step after the other. The one wait of a step is for its own event,
    and the runner says when there is nothing else to do."""
    command = initialize(checkpoint("llama", **SHALLOW), **SMALL)
    plans = [begin([PROMPT]), *(decode([0], [len(PROMPT) + step]) for step in range(4))]
    cpu = load_on_a_cpu(command)[0]
    expected = [unpack_u32(cpu.execute(plan).token_ids) for plan in plans]
    interpret(monkeypatch)
    device = LateDevice()
    runner = load_on(device, command)[0]
    assert runner.seconds_left() is None
    runner.launch(plans[0])
    assert (runner.seconds_left() or 0) > 0
    for plan in plans[1:]:
        runner.launch(plan)
        assert runner.seconds_left() == 0  # finish() would wait
    assert not any(event.passed for event in device.events)
    results = [runner.finish() for _ in plans]
    assert [event.waits for event in device.events] == [1] * len(plans)
    assert [unpack_u32(result.token_ids) for result in results] == expected
    assert len({token for (token,) in expected}) > 2
    ends = [result.started_ns + 1000 * result.duration_us for result in results]
    assert all(end <= result.started_ns for end, result in zip(ends, results[1:], strict=False))


def test_a_plan_has_its_rows_in_any_order(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """Prompts before rows of one token, and behind them: each samples what it samples alone."""
    interpret(monkeypatch)
    command = initialize(checkpoint("llama", **SHALLOW), **SMALL)
    prompts = [PROMPT[:5], PROMPT[2:3], PROMPT[4:8], PROMPT[1:2]]
    runner = load_on_the_host(command)[0]
    alone = []
    for prompt in prompts:
        alone += unpack_u32(runner.execute(begin([prompt])).token_ids)
        runner.execute(worker_pb2.StepPlan(removed_rows=pack_u32([0])))
    assert unpack_u32(runner.execute(begin(prompts)).token_ids) == alone
    assert len(set(alone)) > 2


def test_a_row_without_a_token(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """NaN logits of one row: it alone gets no token, and its next step is as good as any."""
    interpret(monkeypatch)
    runner = load_on_the_host(initialize(checkpoint("llama", **SHALLOW), **SMALL))[0]
    real = runner.backend.model.logits
    runner.backend.model.logits = lambda hidden, adapters: real(hidden).index_fill_(
        0, torch.tensor([1]), torch.nan
    )  # type: ignore[method-assign]
    tokens = unpack_u32(runner.execute(prefill_plan([2, 3], 16)).token_ids)
    assert tokens[0] < VOCAB_SIZE and tokens[1] == NO_TOKEN_COLUMN
    plan = decode([0, 1], [2, 3])
    assert unpack_u32(runner.execute(plan).token_ids)[0] < VOCAB_SIZE


def random_plan(rng: random.Random, used: set[int]) -> worker_pb2.StepPlan:
    """Six rows, some of them used: rows end, begin, begin as copies (of copies), change their tables."""
    ended = [row for row in sorted(used) if rng.random() < 0.2]
    plan = worker_pb2.StepPlan(removed_rows=pack_u32(ended))
    used -= set(ended)
    for row in sorted(set(range(6)) - used):
        if rng.random() < 0.3 or not used:
            count = rng.randint(1, 40)
            ids = pack_u32(rng.randrange(99) for _ in range(count))
            blocks = pack_u32(rng.randrange(500) for _ in range(-(-count // 4)))
            new = worker_pb2.NewRow(row=row, token_ids=ids, blocks=blocks, prompt_len=rng.randint(1, count))
            plan.new_rows.append(new)
            used.add(row)
    for row in sorted(set(range(6)) - used):
        if rng.random() < 0.3:
            plan.forks.append(worker_pb2.ForkRow(row=row, source_row=rng.choice(sorted(used))))
            used.add(row)
    changed = [row for row in sorted(used) for _ in range(2) if rng.random() < 0.3]
    plan.table_rows = pack_u32(changed)
    plan.table_starts = pack_u32(rng.randrange(6) for _ in changed)
    plan.table_counts = pack_u32([2] * len(changed))
    plan.table_blocks = pack_u32(rng.randrange(500) for _ in range(2 * len(changed)))
    return plan


def test_rows_of_the_device_are_those_of_the_host(monkeypatch: pytest.MonkeyPatch):
    """A random walk of everything that a plan changes, some of it in one plan; the core appends, too. A
    launch reads everything before it writes, as programs that run side by side may."""
    monkeypatch.setattr(TritonOps, "copy_segments", staticmethod(copy_segments_reference))
    rng = random.Random(3)
    rows = RowTable(max_num_rows=6, max_model_len=50, vocab_size=99, block_size=4, num_blocks=500)
    device_rows = DeviceRows(rows, LateDevice())
    used: set[int] = set()
    for _ in range(60):
        plan = random_plan(rng, used)
        apply_changes(plan, rows, ())
        appended = [row for row in sorted(used) if rng.random() < 0.3 and rows.num_tokens[row] < 50]
        rows.append(np.array(appended, np.int64), np.array([rng.randrange(99) for _ in appended], np.int64))
        device_rows.update(plan, appended)
        for row in used:
            length, held = rows.num_tokens[row], rows.num_blocks[row]
            assert device_rows.tokens[row, :length].tolist() == rows.token_ids[row, :length].tolist()
            assert device_rows.blocks[row, :held].tolist() == rows.blocks[row, :held].tolist()
            assert (device_rows.lengths[row], device_rows.prompt_lens[row]) == (length, rows.prompt_lens[row])


@pytest.mark.parametrize(
    ("sources", "targets", "parts"),
    [
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [2, 2, 1]),
        ([1, 2], [6, 7], [2]),
        ([1, 2, 3], [2, 3, 0], [3]),  # all are read before 2 and 3 are written
        ([1], [6], [1]),
    ],
)
def test_copies_in_parts(sources: list[int], targets: list[int], parts: list[int]):
    """As many blocks at a time as a buffer holds, two here."""
    found = list(copy_parts(np.array(sources), np.array(targets), BUFFER_BYTES // 2))
    assert [len(sources[part]) for part in found] == parts
    assert [block for part in found for block in sources[part]] == sources
