"""However the scheduler works, every request gets what it gets alone.

The real scheduler drives the real runner in this process, with a mixed load, in every combination of:
prefix cache on and off (and then warm), synchronous and one step ahead, prompts whole and in chunks,
a pool for all and one for two or three whose victims are computed again or swapped: any three of these four.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from engine_core.intake.validation import Limits
from engine_core.scheduler.scheduler import Scheduler
from engine_core.speculation import parse_speculation
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import Result, decode_result
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.internal.v1.engine_pb2 import AdapterRef
from pagewire.ipc.columns import pack_u32
from pagewire.v1.generation_pb2 import BeamSearch, LogprobOptions
from tests.checkpoints import EOS_ID, VOCAB_SIZE, make_checkpoint
from tests.eagle_heads import write_agreeing_pair
from tests.engine_core.fakes import Ledger, add_request, make, run
from tests.logprob_columns import Scored
from tests.worker.adapters.test_rows import DIGESTS, synthetic
from worker.load import load
from worker.platforms.cpu import CpuPlatform

BEAMS = BeamSearch(width=3, length_penalty=1, early_stopping=False)
CONTEXT = 96
ROWS = 8
HOST_BYTES = 1 << 22
STATE_CHECKPOINTS = 3
SYSTEM = [7 + 3 * i for i in range(21)]
"""What some prompts begin with: two full blocks and a part of a third."""
ADAPTED = {2: (0, 0), 5: (1, 9), 6: (0, 0), 7: (1, 21), 9: (1, 0), 10: (0, 30)}
"""Requests that have an adapter, and where it starts."""
EMBEDDED = 3, 10
MODES = list(itertools.product((True, False), (False, True), (256, 13), ("plenty", "recompute", "swap")))
HALF = [
    (cached, ahead, budget, memory)
    for cached, ahead, budget, memory in MODES
    if (cached + ahead + (budget == 13) + (memory == "recompute")) % 2
]
"""In which each combination of three settings occurs."""


def requests() -> list[engine_pb2.AddRequest]:
    """Greedy, sampled, penalized, several sequences, log-probabilities, beams; with common beginnings,
    adapters, and embeddings in place of tokens."""
    messages = [
        add_request(1, SYSTEM + [5, 9], max_tokens=30),
        add_request(2, SYSTEM + [5, 9, 11], max_tokens=25, n=3),
        add_request(3, 40, max_tokens=30, ignore_eos=True),
        add_request(4, SYSTEM, max_tokens=20, logprobs=LogprobOptions(top_n=2)),
        add_request(5, 17, max_tokens=35, min_tokens=9),
        add_request(6, 33, max_tokens=30, prompt_logprobs=LogprobOptions(), prompt_logprobs_start=4),
        add_request(7, SYSTEM + [100], max_tokens=18, beams=BEAMS),
        add_request(8, 1, max_tokens=40, stop_token_ids=[11, 50, 90]),
        add_request(9, SYSTEM + [5, 9], max_tokens=30, bypass=True),
        add_request(10, 50, max_tokens=40, n=2, logprobs=LogprobOptions(top_n=1)),
    ]
    for message in messages:
        sampling = message.sampling
        if message.handle % 3 == 2:
            sampling.temperature, sampling.top_p = 0.8, 0.9
        elif message.handle % 3 == 0:
            sampling.temperature, sampling.frequency_penalty, sampling.repetition_penalty = 1.0, 0.4, 1.2
        elif not sampling.HasField("beam_search"):
            sampling.temperature = 0
        if message.handle in ADAPTED:
            number, start = ADAPTED[message.handle]
            message.adapter.MergeFrom(AdapterRef(name="a", digest=DIGESTS[number], start=start))
        if message.handle in EMBEDDED:
            message.embeddings.positions, message.embeddings.dtype = pack_u32([4, 5, 6, 19]), "float32"
    return messages


class InProcess:
    """A scheduler and a runner, without sockets."""

    dtype, block_size = "auto", 8

    def __init__(
        self,
        folder: Path,
        cached: bool,
        budget: int,
        num_blocks: int,
        swap_bytes: int,
        drafts: int = 0,
        head: Path | None = None,
        burst: int = 0,
    ) -> None:
        """drafts: tokens that are drafted for a row in a step, by a head, or looked up. burst: most steps of
        a plan; 0: one."""
        initialize = worker_pb2.Initialize(
            model_path=str(folder),
            device="cpu",
            dtype=self.dtype,
            load_format="auto",
            max_model_len=CONTEXT,
            max_num_seqs=ROWS,
            max_num_batched_tokens=budget,
            block_size=self.block_size,
            num_blocks=num_blocks,
            tensor_parallel_size=1,
            swap_space_bytes=swap_bytes,
            state_checkpoints=STATE_CHECKPOINTS,
            speculation=parse_speculation(
                f"{f'heads:{head},' if head else 'lookup:'}tokens={drafts}" if drafts else ""
            ),
        )
        self.num_accepted = 0
        self.runner, self.ready = load(initialize, CpuPlatform(WorkerConfig(threads=1)))
        self.scheduler = Scheduler(
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_num_seqs=ROWS,
            max_num_batched_tokens=budget,
            prefix_cache=cached,
            num_host_blocks=self.ready.num_host_blocks,
            state_checkpoints=self.ready.num_state_checkpoints,
            samples_per_row=1 + drafts,
            speculative_tokens_per_step=12 if drafts else 0,
            burst_seconds=burst / 1000,
        )
        self._step_us = 1000 if burst else 0
        self._width = self.ready.model.input_embedding_size
        sizes = num_blocks, self.block_size
        self.limits = Limits(
            VOCAB_SIZE, CONTEXT, ROWS, frozenset([EOS_ID]), *sizes, input_embedding_size=self._width
        )
        adapters = self.runner.backend.adapters
        assert adapters is not None
        for number in range(2):
            adapters.store.add(synthetic(self.runner.backend.model, number))
        self._results: deque[Result] = deque()

    def submit(self, plan: Plan) -> None:
        """See engine_core.core.Worker. Without durations, so that the text alone decides what is drafted; for
        bursts, a step takes a millisecond."""
        message = worker_pb2.StepPlan.FromString(encode_plan(plan).SerializeToString())
        result = decode_result(self.runner.execute(message), plan)
        result = result._replace(duration_us=self._step_us * max(result.sample_counts, default=1))
        self.num_accepted += result.num_accepted_drafts
        self._results.append(result)

    def collect(self) -> Result:
        """See engine_core.core.Worker."""
        return self._results.popleft()

    def outputs(self, messages: list[engine_pb2.AddRequest], ahead: bool) -> Ledger:
        """All at once, to the end."""
        ledger = Ledger()
        for message in messages:
            if message.HasField("embeddings"):
                generator = torch.Generator().manual_seed(message.handle)
                values = 0.1 * torch.randn(4, self._width, generator=generator)
                message.embeddings.values = values.numpy().tobytes()
            self.scheduler.add(make(message, self.limits))
        run(self.scheduler, self, ledger, ahead=ahead)  # type: ignore[arg-type]
        return ledger


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Ledger:
    """What each request gets by itself, computed in the plainest way."""
    engine, together = InProcess(folder, False, 256, 100, 0), Ledger()
    for message in requests():
        ledger = engine.outputs([message], ahead=False)
        together.tokens |= ledger.tokens
        together.ends |= ledger.ends
        together.scores |= ledger.scores
        together.prompt_scores |= ledger.prompt_scores
    assert engine.scheduler.num_preemptions == 0
    return together


def assert_close(ours: list[Scored], theirs: list[Scored]) -> None:
    """Equal but for rounding: other rows in the batch may change a sum in its last bits."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.rank, one.ids, one.ranks) == (other.rank, other.ids, other.ranks)
        assert [one.logprob, *one.logprobs] == pytest.approx([other.logprob, *other.logprobs], abs=1e-4)


@pytest.mark.parametrize(("cached", "ahead", "budget", "memory"), HALF)
def test_the_same_as_alone(folder: Path, alone: Ledger, cached: bool, ahead: bool, budget: int, memory: str):
    num_blocks = 120 if memory == "plenty" else 18
    engine = InProcess(folder, cached, budget, num_blocks, HOST_BYTES if memory == "swap" else 0)
    for _ in range(2):  # the second time with what the first one has left in the cache
        ledger = engine.outputs(requests(), ahead)
        assert ledger.tokens == alone.tokens
        assert ledger.ends == alone.ends
        for ours, theirs in ((ledger.scores, alone.scores), (ledger.prompt_scores, alone.prompt_scores)):
            assert ours.keys() == theirs.keys()
            for key in ours:
                assert_close(ours[key], theirs[key])
    scheduler = engine.scheduler
    assert scheduler.pool.num_free == num_blocks
    assert (scheduler.num_preemptions > 0) == (memory != "plenty")
    assert (scheduler.swap.num_swapped_out > 0) == (memory == "swap")
    assert (scheduler.prefix_cache.hit_rate.ratio > 0) == cached


def test_adapters_and_embeddings_count(folder: Path, alone: Ledger):
    """What the modes compare would be equal without them otherwise."""
    messages = requests()
    for message in messages:
        message.ClearField("adapter")
        message.ClearField("embeddings")
    plain = InProcess(folder, True, 256, 120, 0).outputs(messages, ahead=False)
    changed = {handle for (handle, _), tokens in plain.tokens.items() if tokens != alone.tokens[handle, 0]}
    assert {1, 4, 8}.isdisjoint(changed) and changed >= {*ADAPTED, *EMBEDDED} - {6, 9}


class InBfloat16(InProcess):
    """With kernels whose results do not depend on the number of rows, bit for bit."""

    dtype, block_size = "bfloat16", 16


def repeating() -> list[engine_pb2.AddRequest]:
    """The requests, of which most may choose among few tokens: runs of them occur again.

    Some have a length that no token changes: any two of those need more blocks than the small pool has.
    """
    messages = requests()
    for message in messages[:-1]:
        message.sampling.allowed_token_ids[:] = [5, 9, 11, EOS_ID]
        message.stopping.ignore_eos |= message.handle in (1, 5, 6, 9)
    return messages


@pytest.fixture(scope="module")
def plainest() -> Callable[[Path], Ledger]:
    """What a model gives without drafts and bursts, computed in the plainest way, once for all modes."""
    return cache(lambda folder: InBfloat16(folder, False, 256, 120, 0).outputs(repeating(), ahead=False))


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    ("cached", "ahead", "budget", "memory", "method"),
    [(*mode, method) for mode, method in zip(MODES[::5], itertools.cycle(("lookup", "heads")))],
)
def test_the_same_with_drafts(
    target_and_head: tuple[Path, Path],
    plainest: Callable[[Path], Ledger],
    cached: bool,
    ahead: bool,
    budget: int,
    memory: str,
    method: str,
):
    """Bit for bit, log-probabilities too: with drafts in this mode, and without them in the plainest one."""
    target, head = target_and_head
    plain = plainest(target)
    num_blocks, host_bytes = 120 if memory == "plenty" else 7, HOST_BYTES if memory == "swap" else 0
    drafter = {"drafts": 5, "head": head if method == "heads" else None}
    engine = InBfloat16(target, cached, budget, num_blocks, host_bytes, **drafter)
    for _ in range(2):
        ledger = engine.outputs(repeating(), ahead)
        assert (ledger.tokens, ledger.ends) == (plain.tokens, plain.ends)
        assert (ledger.scores, ledger.prompt_scores) == (plain.scores, plain.prompt_scores)
    assert engine.num_accepted > 0 and engine.scheduler.pool.num_free == num_blocks
    assert (engine.scheduler.num_preemptions > 0) == (memory != "plenty")


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("cached", "ahead", "budget", "memory"), [MODES[4], MODES[9]])
def test_the_same_with_drafts_beside_states(
    checkpoints: dict[str, Path],
    plainest: Callable[[Path], Ledger],
    cached: bool,
    ahead: bool,
    budget: int,
    memory: str,
):
    """Of a model that keeps a state per row."""
    folder = checkpoints["qwen3_5"]
    plain = plainest(folder)
    num_blocks = 120 if memory == "plenty" else 7
    engine = InBfloat16(folder, cached, budget, num_blocks, 0, drafts=5)
    for _ in range(2):
        ledger = engine.outputs(repeating(), ahead)
        assert (ledger.tokens, ledger.ends) == (plain.tokens, plain.ends)
        assert (ledger.scores, ledger.prompt_scores) == (plain.scores, plain.prompt_scores)
    assert engine.num_accepted > 0 and engine.scheduler.pool.num_free == num_blocks
    assert (engine.scheduler.num_preemptions > 0) == (memory != "plenty")


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("cached", "ahead", "budget", "memory"), MODES[::5])
@pytest.mark.parametrize("model", ["llama", "qwen3_5"])
def test_the_same_in_bursts(
    model: str,
    checkpoints: dict[str, Path],
    plainest: Callable[[Path], Ledger],
    cached: bool,
    ahead: bool,
    budget: int,
    memory: str,
):
    """Bit for bit, log-probabilities too: steps that the core plans together, and one by one."""
    folder = checkpoints[model]
    plain = plainest(folder)
    num_blocks = 120 if memory == "plenty" else 7
    host_bytes = HOST_BYTES if memory == "swap" and model == "llama" else 0
    engine = InBfloat16(folder, cached, budget, num_blocks, host_bytes, burst=7)
    for _ in range(2):
        ledger = engine.outputs(repeating(), ahead)
        assert (ledger.tokens, ledger.ends) == (plain.tokens, plain.ends)
        assert (ledger.scores, ledger.prompt_scores) == (plain.scores, plain.prompt_scores)
    assert engine.num_accepted > 0 and engine.scheduler.pool.num_free == num_blocks


HEADS = {"llama": {"head_dim": 32, "hidden_size": 64}, "qwen3_5": {}}
"""Sizes that the kernels attend to."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_checkpoint(name, tmp_path_factory.mktemp(name), **HEADS[name]) for name in HEADS}


@pytest.fixture(scope="module")
def target_and_head(
    tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]
) -> tuple[Path, Path]:
    """A model to whose cache the kernels can attend, and a head that is often right."""
    return write_agreeing_pair(tmp_path_factory.mktemp("pair"), checkpoints["llama"], noise=0.03)
