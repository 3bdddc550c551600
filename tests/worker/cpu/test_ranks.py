"""Compiled kernels on several ranks: the bits of one rank, in every form of weights."""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_core.step.plan import encode_plan
from kernels.cpu.runtime.arena import zeros
from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from tests.eagle_heads import write_agreeing_pair
from tests.engine_core.fakes import add_request, run
from tests.engine_core.world import World
from tests.logprob_columns import top
from tests.worker.adapters.peft_files import write_adapter
from tests.worker.fakes import Driver, initialize, resolved_params
from tests.worker.ranks import (
    LEAVES,
    SilentRank,
    ThreadGroup,
    attend_head_by_head,
    load_rank,
    on_ranks,
    run_model,
)
from tests.worker.speculation.models.test_head_drafter import noted
from tests.worker.speculation.models.test_mtp import write_layer
from worker.cpu.backend import CpuBackend
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.cpu.kernel_selection import use_cpu_kernels
from worker.cpu.precompile import needed_groups
from worker.executor.backend import LaunchClock, SampledTokens
from worker.families.registry import read_model_config
from worker.layers.linear import RowLinear
from worker.load import load
from worker.parallel import ParallelGroup
from worker.platforms.cpu import CpuPlatform

pytestmark = pytest.mark.cpu_kernels
CPU = torch.device("cpu")
SIZES = {"num_attention_heads": 8, "head_dim": 128, "num_key_value_heads": 2, "intermediate_size": 1024}
"""Of which products behind attention and in MLPs are the sums of four leaves."""
CASES = [
    ("llama", "float32", ""),
    ("llama", "bfloat16", ""),
    ("llama", "bfloat16", "int8"),
    ("llama", "bfloat16", "int4"),
    ("gpt2", "bfloat16", ""),
    ("gpt2", "bfloat16", "int8"),
    ("mixtral", "bfloat16", ""),
    ("mixtral", "bfloat16", "int8"),
]
NUMBERS = itertools.count()
"""Of groups."""
GUARD = 1 << 16
"""Bytes before and behind a buffer."""
TURN = threading.Lock()
"""Kernels have one team of threads in a process."""


class InTurns(ThreadGroup):
    """A rank that computes while no other one does."""

    def gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        TURN.release()
        try:
            return super().gather(part)
        finally:
            TURN.acquire()


@pytest.mark.parametrize(("family", "dtype", "quantization"), CASES)
def test_ranks_have_the_bits_of_one(
    family: str,
    dtype: str,
    quantization: str,
    checkpoint: Callable[..., Path],
    short_leaves: None,
    monkeypatch: pytest.MonkeyPatch,
):
    attend_head_by_head(monkeypatch)
    folder = checkpoint(family, **({"n_embd": 1024, "n_head": 8} if family == "gpt2" else SIZES))
    vocab_size = read_model_config(folder).vocab_size

    def work(group: ParallelGroup) -> bytes:
        with TURN:
            model = load_rank(folder, group, dtype, quantization=quantization)
            kind = getattr(torch, dtype)
            use_cpu_kernels(model, kind, CPU, 16, None, None, lambda *_: None, quantization=quantization)
            rows = [layer for layer in model.modules() if isinstance(layer, RowLinear)]
            leaves = {1} if quantization == "int8" else {LEAVES // group.size, 8 // group.size}
            assert {1 << row.packed.depth for row in rows if row.packed} <= leaves
            logits = run_model(model, vocab_size, steps=2)
        return torch.cat([each.float() for each in logits]).numpy().tobytes()

    (expected,) = on_ranks(1, work, InTurns)
    for size in (2, 4):
        assert on_ranks(size, work, InTurns) == [expected] * size, size


def test_a_sum_of_too_few_leaves_is_refused(checkpoint: Callable[..., Path]):
    """By the layer's name, before any matrix is packed; integers of 8 bits have no leaves."""
    folder = checkpoint("llama", num_attention_heads=4, head_dim=512, intermediate_size=1000)

    def pack(group: ParallelGroup, quantization: str) -> None:
        model = load_rank(folder, group, "bfloat16", quantization=quantization)
        use_cpu_kernels(
            model, torch.bfloat16, CPU, 16, None, None, lambda *_: None, quantization=quantization
        )

    expected = r"blocks\.0\.mlp\.down, with 1000 inputs, is a sum of 1 leaf, .* among 2 ranks"
    for quantization in ("", "int4"):
        with pytest.raises(StartupError, match=expected):
            pack(SilentRank(0, 2), quantization)
    with pytest.raises(StartupError, match="2 leaves, which cannot be divided among 4 ranks"):
        pack(SilentRank(0, 4), "")
    pack(SilentRank(1, 4), "int8")


TEAMS: list[Any] = []
"""Their helpers never end, and read their memory."""


class TeamOfThread:
    """Stands in for the team of a process: each thread has its own."""

    def __init__(self) -> None:
        self._own = threading.local()

    def __getattr__(self, name: str) -> Any:
        from kernels.cpu.runtime.thread_pool import Team  # compiles, the first time

        if not hasattr(self._own, "team"):
            self._own.team = Team()
            TEAMS.append(self._own.team)
        return getattr(self._own.team, name)


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Returns what each rank returns, which is a thread that loads a model as its process would, and drives
    it."""

    def run(
        folder: Path,
        tensor: int,
        drive: Callable[..., Any],
        threads: int = 1,
        stages: int = 1,
        **changes: object,
    ) -> list[Any]:
        fields = {"block_size": 16, "num_blocks": 200, "max_num_seqs": 8, "budget": 40, **changes}
        size = tensor * stages
        group = {
            "tensor_parallel_size": tensor,
            "pipeline_parallel_size": stages,
            "group_name": f"threads-{next(NUMBERS)}",
            "first_rank_pid": os.getpid(),
        }
        command = initialize(folder, **changes, **(group if size > 1 else {}))
        for kernels in needed_groups(command):
            kernels.load()  # no code is loaded while a rank waits in compiled code
        found: dict[int, Any] = {}

        def of_rank(rank: int) -> None:
            platform = CpuPlatform(WorkerConfig(threads=threads, rank=rank))
            try:
                loaded = partial(load, platform=platform)
                found[rank] = drive(loader=loaded, **fields, **(group if size > 1 else {}))
            except BaseException as error:
                found[rank] = error
                if platform.ranks is not None:
                    platform.ranks.abort()

        ranks = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(size)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join()
        for result in found.values():
            if isinstance(result, BaseException):
                raise result
        return [found[rank] for rank in range(size)]

    monkeypatch.setattr("kernels.cpu.runtime.thread_pool.TEAM", TeamOfThread())
    return run


PROMPTS = [[3 + (number + i) % 200 for i in range(1 + 9 * number)] for number in range(4)]


@pytest.mark.parametrize(
    ("family", "changes", "dtype", "quantization"),
    [
        ("llama", {"mlp_bias": True, "attention_bias": True}, "float32", ""),
        ("llama", {"mlp_bias": True, "vocab_size": 319}, "bfloat16", ""),
        ("llama", {"mlp_bias": True, "tie_word_embeddings": True}, "bfloat16", "int8"),
        ("llama", {}, "bfloat16", "int4"),
        ("qwen3", {}, "bfloat16", ""),
        ("gemma2", {}, "bfloat16", ""),
        ("mixtral", {}, "bfloat16", ""),
        ("mixtral", {"num_local_experts": 5}, "bfloat16", "int8"),
        ("qwen2_moe", {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 1024}, "float32", ""),
    ],
)
def test_steps_are_programs_with_the_bits_of_one_rank(
    family: str,
    changes: dict[str, object],
    dtype: str,
    quantization: str,
    checkpoint: Callable[..., Path],
    short_leaves: None,
    on_threads: Callable[..., list[Any]],
):
    """Prompts in chunks, and what follows them."""
    folder = checkpoint(family, **SIZES, **changes)

    def drive(**fields: Any) -> list[bytes]:
        driver = Driver(folder, **fields)
        assert isinstance(driver.runner.backend.model, FusedDecoder)
        sequences = [driver.add(prompt, 6)[0] for prompt in PROMPTS]
        driver.run()
        return [torch.stack(sequence.logits).numpy().tobytes() for sequence in sequences]

    settings = {"dtype": dtype, "quantization": quantization}
    (expected,) = on_threads(folder, 1, drive, **settings)
    for size in (2, 4):
        assert on_threads(folder, size, drive, **settings) == [expected] * size, size


def test_norms_over_the_heads_of_all_ranks_are_computed_layer_by_layer(
    checkpoint: Callable[..., Path], on_threads: Callable[..., list[Any]]
):
    folder = checkpoint("olmo2", **SIZES)

    def drive(**fields: Any) -> tuple[bool, list[bytes]]:
        driver = Driver(folder, **fields)
        sequences = [driver.add(prompt, 3)[0] for prompt in PROMPTS]
        driver.run()
        logits = [torch.stack(sequence.logits).numpy().tobytes() for sequence in sequences]
        return isinstance(driver.runner.backend.model, FusedDecoder), logits

    ((_, expected),) = on_threads(folder, 1, drive, dtype="bfloat16")
    assert on_threads(folder, 2, drive, dtype="bfloat16") == [(False, expected)] * 2


PARAMS = [
    resolved_params(),
    resolved_params(temperature=1, seed=3),
    resolved_params(temperature=0.5, top_k=3, seed=4),
    resolved_params(repetition_penalty=1.7),
    resolved_params(temperature=0.9, typical_p=0.8, seed=5),
]
"""Of rows whose tokens the program chooses, and of some whose logits the sampler changes, or chooses by."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("numbers", [[0], [1, 2], [0, 3], [4], [0, 1, 2, 3, 4]])
def test_rank_0_chooses_the_tokens_of_steps_that_repeat(
    numbers: list[int], threads: int, checkpoint: Callable[..., Path], on_threads: Callable[..., list[Any]]
):
    """In the program, or behind it; alone, and beside rows of the other kind."""
    folder = checkpoint("llama", tie_word_embeddings=True, **SIZES)

    def drive(**fields: Any) -> tuple[list[list[int]], int]:
        driver = Driver(folder, record=False, **fields)
        backend: CpuBackend = driver.runner.backend
        repeat, repeated = backend.repeat, 0

        def watched(plan: worker_pb2.StepPlan, clock: LaunchClock) -> SampledTokens | None:
            nonlocal repeated
            found = repeat(plan, clock)
            repeated += found is not None
            return found

        backend.repeat = watched  # type: ignore[method-assign]
        sequences = [driver.add(PROMPTS[number % 4], 20, PARAMS[number])[0] for number in numbers]
        driver.run()
        return [sequence.output for sequence in sequences], repeated

    (expected,) = on_threads(folder, 1, drive, dtype="bfloat16")
    for tokens, repeated in on_threads(folder, 2, drive, threads, dtype="bfloat16"):
        assert tokens == expected[0]
        assert repeated > 10


@pytest.mark.parametrize(("tensor", "stages"), [(2, 1), (2, 2)])
def test_programs_write_into_their_buffers_alone(
    tensor: int,
    stages: int,
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    on_threads: Callable[..., list[Any]],
):
    """It has found that ranks which share layers exchanged logits of all tokens of a step, where these were
    among ranks of several stages: a step may have more tokens than there is room for logits."""
    folder, guards = checkpoint("llama", hidden_size=64, **SIZES), list[torch.Tensor]()

    def guarded(size: tuple[int], dtype: torch.dtype) -> torch.Tensor:
        whole = zeros((2 * GUARD + size[0] * dtype.itemsize,), torch.uint8)
        whole[:GUARD], whole[-GUARD:] = 0xA5, 0xA5
        guards.extend((whole[:GUARD], whole[-GUARD:]))
        return whole[GUARD:-GUARD].view(dtype)

    def drive(**fields: Any) -> None:
        driver = Driver(folder, record=False, **fields)
        for prompt in PROMPTS:
            driver.add(prompt, 3)
        driver.run()

    monkeypatch.setattr("kernels.cpu.program.buffers.zeros", guarded)
    on_threads(folder, tensor, drive, stages=stages, dtype="bfloat16")
    assert len(guards) > 100
    assert not sum(int((guard != 0xA5).sum()) for guard in guards)


@pytest.mark.parametrize("kind", ["lookup", "draft", "heads"])
def test_rank_0_drafts_for_all(
    kind: str, tmp_path: Path, checkpoint: Callable[..., Path], on_threads: Callable[..., list[Any]]
):
    """Outputs are those of one rank without drafts, and so are the drafts. A draft model and a head are at
    rank 0 alone, whole; the head reads the embedding of the target, and hidden states of all stages."""
    folder = checkpoint("llama", hidden_size=64, **SIZES)
    if kind == "heads":
        folder, head = write_agreeing_pair(tmp_path, folder, noise=0)
    paths = {"lookup": "", "draft": f":{folder}", "heads": f":{tmp_path / 'head'}"}

    def drive(**fields: Any) -> tuple[list[list[int]], int]:
        driver = Driver(folder, record=False, room=3 if "speculation" in fields else 0, **fields)
        requests = zip(PROMPTS, PARAMS, strict=False)
        sequences = [driver.add(prompt, 24, params)[0] for prompt, params in requests]
        driver.run()
        return [sequence.output for sequence in sequences], driver.num_accepted

    (expected,) = on_threads(folder, 1, drive, dtype="bfloat16")
    assert expected[1] == 0
    settings = {"dtype": "bfloat16", "speculation": f"{kind}{paths[kind]}"}
    (one,) = on_threads(folder, 1, drive, **settings)
    assert one[0] == expected[0] and (one[1] > 10 or kind == "lookup")
    for tensor, stages in ((2, 1), (1, 2), (1, 3), (2, 2)):
        found = on_threads(folder, tensor, drive, stages=stages, **settings)
        assert found == [one] * (tensor * stages), (tensor, stages)


@pytest.mark.parametrize(("dtype", "quantization"), [("float32", ""), ("bfloat16", ""), ("bfloat16", "int4")])
def test_rows_with_adapters(
    dtype: str,
    quantization: str,
    tmp_path: Path,
    checkpoint: Callable[..., Path],
    short_leaves: None,
    on_threads: Callable[..., list[Any]],
):
    """Beside one without; a step of those is a program again."""
    folder = checkpoint("llama", **SIZES)
    write_adapter(folder, tmp_path / "adapter", merge=False, r=4, target_modules="all-linear", std=0.2)

    def drive(adapts: bool, **fields: Any) -> list[list[int]]:
        driver = Driver(folder, record=False, **fields)
        order = worker_pb2.LoadAdapter(source=str(tmp_path / "adapter"), max_bytes=1 << 30)
        loaded = driver.runner.load_adapter(order).result()  # type: ignore[attr-defined]
        assert not loaded.problem
        adapter = worker_pb2.RowAdapter(digest=loaded.digest) if adapts else None
        sequences = [
            driver.add(prompt, 6 + 3 * number, PARAMS[number], adapter=adapter if number else None)[0]
            for number, prompt in enumerate(PROMPTS)
        ]
        driver.run()
        return [sequence.output for sequence in sequences]

    settings = {"dtype": dtype, "quantization": quantization}
    plain, adapted = (on_threads(folder, 1, partial(drive, each), **settings) for each in (False, True))
    assert adapted[0][0] == plain[0][0] and adapted[0][1:] != plain[0][1:]
    for tensor, stages in ((2, 1), (4, 1), (1, 2), (1, 3), (2, 2)):
        found = on_threads(folder, tensor, partial(drive, True), stages=stages, **settings)
        assert found == adapted * (tensor * stages), (tensor, stages)


HYBRID: dict[str, object] = {
    "num_hidden_layers": 5,
    "layer_types": ["linear_attention", "full_attention"] * 2 + ["linear_attention"],
}


def outputs(folder: Path, is_program: bool = True, room: int = 0, **fields: Any) -> list[list[int]]:
    """Tokens of prompts in chunks, greedy and sampled, beside one another."""
    driver = Driver(folder, record=False, room=room, **fields)
    assert isinstance(driver.runner.backend.model, FusedDecoder) == is_program
    requests = zip(PROMPTS, PARAMS, strict=False)
    sequences = [driver.add(prompt, 12, params)[0] for prompt, params in requests]
    driver.run()
    return [sequence.output for sequence in sequences]


@pytest.mark.parametrize(
    ("changes", "dtype", "quantization"),
    [
        ({"num_hidden_layers": 5}, "float32", ""),
        ({"num_hidden_layers": 4, "tie_word_embeddings": True}, "bfloat16", ""),
        ({"num_hidden_layers": 4, "mlp_bias": True}, "bfloat16", "int8"),
        ({"num_hidden_layers": 4}, "bfloat16", "int4"),
    ],
)
def test_stages_have_the_bits_of_one_worker(
    changes: dict[str, object],
    dtype: str,
    quantization: str,
    checkpoint: Callable[..., Path],
    short_leaves: None,
    on_threads: Callable[..., list[Any]],
):
    """Stages of one rank and of two."""
    folder, settings = checkpoint("llama", **SIZES, **changes), {"dtype": dtype, "quantization": quantization}
    drive = partial(outputs, folder)
    (expected,) = on_threads(folder, 1, drive, **settings)
    for tensor, stages in ((1, 2), (1, 3), (2, 2)):
        found = on_threads(folder, tensor, drive, stages=stages, **settings)
        assert found == [expected] * (tensor * stages), (tensor, stages)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gemma2", {}),
        ("mixtral", {}),
        ("gpt2", {}),
        ("opt", {"word_embed_proj_dim": 16, "do_layer_norm_before": False}),
        ("cohere2", {}),
        ("olmo2", {}),
        ("qwen3_5", HYBRID),
        ("bamba", {"num_hidden_layers": 4, "attn_layer_indices": [0, 3]}),
        ("falcon_h1", {}),
        ("gemma4", {}),
        ("gemma4", {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}),
    ],
)
def test_stages_of_other_families(
    family: str,
    changes: dict[str, object],
    checkpoint: Callable[..., Path],
    on_threads: Callable[..., list[Any]],
):
    """Norms behind parts, between stages or at the end alone; experts, learned positions, a narrow embedding,
    parts side by side; layers that keep states in both stages, that read keys and values of others, and that
    have vectors of tokens."""
    folder = checkpoint(family, **changes)
    drive = partial(outputs, folder, family != "gemma4")
    (expected,) = on_threads(folder, 1, drive, dtype="bfloat16")
    for stages in (2, 3) if family == "gemma4" else (2,):
        assert on_threads(folder, 1, drive, stages=stages, dtype="bfloat16") == [expected] * stages


@pytest.mark.parametrize(("family", "changes"), [("deepseek_v3", {}), ("qwen3_5", HYBRID)])
def test_a_layer_that_predicts_one_token_more_reads_the_last_stage(
    family: str,
    changes: dict[str, object],
    tmp_path: Path,
    checkpoint: Callable[..., Path],
    on_threads: Callable[..., list[Any]],
    monkeypatch: pytest.MonkeyPatch,
):
    """Its drafts are those of one worker, and outputs those without drafts; also where layers keep states."""
    folder = checkpoint(family, **changes)
    settings = {"dtype": "bfloat16", "speculation": f"heads:{write_layer(tmp_path / 'head', folder, seed=1)}"}
    (expected,) = on_threads(folder, 1, partial(outputs, folder), dtype="bfloat16")
    drafted, drive = noted(monkeypatch), partial(outputs, folder, room=3)
    assert on_threads(folder, 1, drive, **settings) == [expected]
    of_one = list(drafted)
    drafted.clear()
    assert on_threads(folder, 1, drive, stages=2, **settings) == [expected] * 2
    assert drafted == of_one and sum(bool(drafts) for _, drafts in drafted) > 10


def micro_batches(stages: int, *, has_states: bool) -> list[worker_pb2.StepPlan]:
    """The plans of a core: prompts in parts, rows that take turns, that fork and are preempted, ends of rows
    and others in their place."""
    world = World(
        blocks=12, block_size=16, budget=24, rows=5, stages=stages, ahead=True, prefix_cache=not has_states
    )
    for number in range(7):
        options = {"logprobs": top(2)} if number % 3 == 1 else {}
        sampling = {
            "temperature": 1.0,
            "presence_penalty": 0.3 * (number % 2),
            "n": 1 + 2 * (number % 3 == 2),
        }
        prompt = [3 + (number + i) % 200 for i in range(1 + 8 * number)]
        message = add_request(number + 1, prompt, max_tokens=4 + 2 * number, ignore_eos=True, **options)
        for name, value in sampling.items():
            setattr(message.sampling, name, value)
        world.take(message)
    run(world.scheduler, world.worker, world.ledger, ahead=True)
    return [encode_plan(plan) for plan in world.worker.plans]


def execute(plans: list[worker_pb2.StepPlan], **fields: Any) -> tuple[list[worker_pb2.StepResult], int]:
    """Launches each plan as soon as it may be, and finishes a step when it must. Returns the results without
    times, and the most plans that had begun."""
    driver = Driver(record=False, **fields)
    runner, results, most = driver.runner, list[worker_pb2.StepResult](), 0
    for plan in plans:
        while runner.awaits(plan):
            results.append(runner.finish())
        runner.launch(plan)
        most = max(most, sum(pending.rest is not None for pending in runner._pending))
    while runner.seconds_left() is not None:
        results.append(runner.finish())
    for result in results:
        for name in ("started_ns", "duration_us", "prepare_us", "forward_us", "sample_us"):
            result.ClearField(name)
    return results, most


@pytest.mark.parametrize(
    ("family", "stages", "changes"),
    [
        ("llama", 2, {"num_hidden_layers": 3}),
        ("mixtral", 3, {"num_hidden_layers": 4}),
        ("falcon_h1", 2, {"mamba_d_ssm": 1024, "mamba_n_heads": 8, "mamba_d_head": 128}),
    ],
)
def test_micro_batches_have_the_results_of_one_rank(
    family: str,
    stages: int,
    changes: dict[str, object],
    checkpoint: Callable[..., Path],
    on_threads: Callable[..., list[Any]],
):
    """Tokens and log-probabilities of the same plans; steps begin before the last ones have ended."""
    folder = checkpoint(family, vocab_size=1000, **SIZES, **changes)
    plans = micro_batches(stages, has_states=family == "falcon_h1")
    assert sum(plan.micro_batch for plan in plans) > 10

    def drive(**fields: Any) -> tuple[list[worker_pb2.StepResult], int]:
        return execute(plans, folder=folder, **fields)

    settings = {"dtype": "bfloat16", "max_num_seqs": 5}
    ((expected, _),) = on_threads(folder, 1, drive, **settings)
    (found, most), *others = on_threads(folder, 1, drive, stages=stages, **settings)
    assert found == expected and most == stages
    assert all([result.step for result in results] == [plan.step for plan in plans] for results, _ in others)
