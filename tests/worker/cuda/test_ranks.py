"""CUDA ranks in Triton's interpreter, threads that copy by gloo: the tokens and log-probabilities of one
worker, bit for bit; what is refused; and a rank that dies."""

import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.logprob_columns import Scored
from tests.worker.cpu.test_rank_memory import on_each
from tests.worker.cuda.host_devices import SMALL, host_device, interpret
from tests.worker.fakes import Driver, initialize, resolved_params
from worker.cpu.rank_memory import Ranks
from worker.cpu.rank_peers import RankPeers
from worker.cuda.backend import CudaBackend, CudaCompletion
from worker.cuda.device import HostDevice, Memory
from worker.cuda.rank_group import DeviceCopies
from worker.cuda.startup import limits, ranks
from worker.executor.backend import LaunchClock
from worker.executor.executor import StepExecutor
from worker.load import check, load, make_ready
from worker.loop import RankGone
from worker.platforms.cuda import CudaPlatform

Checkpoints = Callable[..., Path]
Runner = StepExecutor[CudaBackend]
CPU = torch.device("cpu")
PROMPT = [5, 100, 33, 210, 7, 8, 9, 9, 9, 250]
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
SHAPE = HEADS | {
    "num_hidden_layers": 2,
    "max_position_embeddings": 96,
    "intermediate_size": 192,
    "attention_bias": True,
}
"""Of which products behind attention and in MLPs are the sums of two leaves."""
HYBRID = HEADS | {
    "num_hidden_layers": 2,
    "max_position_embeddings": 96,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_value_head_dim": 32,
    "linear_key_head_dim": 16,
    "shared_expert_intermediate_size": 128,
}
"""With experts, of which some are for all tokens, and with states."""
NUMBERS = itertools.count()
"""Of groups."""
TURN = threading.Lock()
"""The interpreter runs one kernel at a time."""


@pytest.fixture(autouse=True)
def in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that waits for another one lets that compute."""
    for waits, name in ((DeviceCopies, "_wait"), (Ranks, "exchange_by"), (Ranks, "await_pids")):
        monkeypatch.setattr(waits, name, released(getattr(waits, name)))
    monkeypatch.setattr(ranks, "make_device_groups", released(ranks.make_device_groups))


HELD = threading.local()
"""Whether this thread has its turn."""


@contextmanager
def turn() -> Iterator[None]:
    with TURN:
        HELD.now = True
        try:
            yield
        finally:
            HELD.now = False


def released(wait: Callable[..., Any]) -> Callable[..., Any]:
    def within(*arguments: Any) -> Any:
        if not getattr(HELD, "now", False):
            return wait(*arguments)
        HELD.now = False
        TURN.release()
        try:
            return wait(*arguments)
        finally:
            TURN.acquire()
            HELD.now = True

    return within


class Group:
    """The runners of all ranks, as one."""

    def __init__(self, runners: list[Runner], ranks: list[RankPeers | None]) -> None:
        self.runners, self.ranks, self.backend = runners, ranks, runners[0].backend

    def each(self, work: Callable[[Runner], object]) -> list[Any]:
        def of_rank(rank: int) -> object:
            with turn(), torch.inference_mode(), np.errstate(all="ignore"):  # as arithmetic_of_a_gpu
                try:
                    return work(self.runners[rank])
                except Exception:
                    if (ranks := self.ranks[rank]) is not None:
                        ranks.abort()
                    raise

        return succeeded(on_each(of_rank, len(self.runners)))

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        """What rank 0 says; all have sampled the same tokens."""
        results = self.each(lambda runner: runner.execute(plan))
        assert len({result.token_ids for result in results}) == 1
        return results[0]


def succeeded(found: list[object]) -> list[Any]:
    """What all ranks have returned. Raises what the first one has raised by itself."""
    errors = [each for each in found if isinstance(each, Exception)]
    for error in sorted(errors, key=lambda error: isinstance(error, RankGone)):
        raise error
    return found


def load_group(command: worker_pb2.Initialize) -> tuple[Group, worker_pb2.Ready]:
    """A tests.worker.fakes.Loader."""
    command.group_name, command.first_rank_pid = f"cuda-{next(NUMBERS)}", os.getpid()
    size = max(1, command.tensor_parallel_size) * max(1, command.pipeline_parallel_size)

    def load(rank: int) -> tuple[Runner, RankPeers | None, worker_pb2.Ready]:
        platform = CudaPlatform(WorkerConfig(rank=rank), host_device())
        model = platform.load_model(check(command, platform))
        runner = model.assemble(command.num_blocks, command.swap_space_bytes)
        return runner, platform.ranks, make_ready(model, runner, "cuda", 0.0)

    runners, others, readies = zip(*succeeded(on_each(load, size)), strict=True)
    return Group(list(runners), list(others)), readies[0]


Made = tuple[list[int], list[Scored], list[Scored]]


def made(folder: Path, graphs: bool = False, **options: Any) -> list[Made]:
    """Tokens, their log-probabilities and those of prompts, of rows that are drawn, and of greedy ones; in
    steps with pieces of prompts."""
    driver = Driver(folder, loader=load_group, record=False, budget=7, **{**SMALL, **options})
    if graphs:
        driver.runner.each(lambda runner: [runner.backend.capture(size) for size in (8, 4)])  # type: ignore[attr-defined]
        driver.runner.each(lambda runner: runner.backend.capture_sampling(4))  # type: ignore[attr-defined]
    wants = LogprobOptions(top_n=3)
    drawn = resolved_params(temperature=1.2, top_k=40, seed=7, repetition_penalty=1.3)
    rows = [
        *driver.add(PROMPT[1:], 2, resolved_params(), wants=wants, prompt_wants=wants),
        *driver.add(PROMPT[:2], 3, drawn),
        *driver.add(PROMPT[3:4], 3, resolved_params(temperature=0.9, seed=3)),
    ]
    driver.run()
    return [(row.output, row.scores, row.prompt_scores) for row in rows]


@pytest.mark.parametrize(
    ("family", "sizes", "options", "graphs"),
    [
        ("llama", SHAPE, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, False),
        ("qwen3_next", HYBRID, {"tensor_parallel_size": 2}, True),
    ],
    ids=["stages", "experts and states in graphs"],
)
def test_ranks_have_the_bits_of_one(
    family: str,
    sizes: dict[str, Any],
    options: dict[str, Any],
    graphs: bool,
    checkpoint: Checkpoints,
    monkeypatch: pytest.MonkeyPatch,
):
    interpret(monkeypatch)
    folder = checkpoint(family, **sizes)
    assert made(folder, graphs, **options) == made(folder)


def test_loading_measures_and_warms_up_together(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """All ranks have the blocks of the one that has the fewest, and as many steps to measure."""
    interpret(monkeypatch)
    folder = checkpoint("llama", **SHAPE)
    small = {"max_num_seqs": 1, "max_num_batched_tokens": 3, "block_size": 16, "enforce_eager": True}
    name = {"group_name": f"cuda-{next(NUMBERS)}", "first_rank_pid": os.getpid()}
    command = initialize(folder, pipeline_parallel_size=2, max_model_len=16, **name, **small)
    command.num_blocks = 0
    devices = [HostDevice(Memory(1 << 30, free)) for free in (1 << 30, 1 << 29)]

    def loaded(rank: int) -> tuple[int, int, str]:
        platform = CudaPlatform(WorkerConfig(rank=rank), devices[rank])
        with turn():
            try:
                runner, ready = load(command, platform)
            except Exception:
                assert platform.ranks is not None
                platform.ranks.abort()
                raise
        return ready.num_blocks, runner.rows.cache_blocks, ready.model.arithmetic

    one, other = succeeded(on_each(loaded))
    assert one == other and one[0] > 2 and one[2] == "cuda interpreter, tree"


@pytest.mark.parametrize(
    ("family", "options", "why"),
    [
        ("llama", {"tensor_parallel_size": 2, "fast_matmul": True}, "--fast-matmul adds in an order"),
        ("llama", {"tensor_parallel_size": 2, "quantization": "int8"}, "--quantization int8 chooses scales"),
        ("llama", {"tensor_parallel_size": 4}, "2 key and value heads|is a sum of 2 leaves"),
        ("llama", {"pipeline_parallel_size": 2, "speculation": "lookup"}, "--speculate drafts on one GPU"),
        ("llama", {"pipeline_parallel_size": 2, "max_loras": 2}, "adapters .* are for one GPU"),
        ("bert", {"pipeline_parallel_size": 2}, "one GPU computes BertModel"),
    ],
    ids=str,
)
def test_what_ranks_do_not_compute_is_refused(
    family: str, options: dict[str, Any], why: str, checkpoint: Checkpoints
):
    """By name, before ranks look for one another."""
    folder = checkpoint(family, **(SHAPE if family == "llama" else {}))
    platform = CudaPlatform(WorkerConfig(), host_device())
    with pytest.raises(StartupError, match=why):
        platform.load_model(check(initialize(folder, **SMALL, **options), platform))


def test_ranks_attend_in_tiles_of_one_size(checkpoint: Checkpoints):
    """More query heads of a KV head than a tile has rows."""
    folder = checkpoint("llama", hidden_size=128, num_attention_heads=128, num_key_value_heads=1, head_dim=16)
    platform = CudaPlatform(WorkerConfig(), host_device())
    command = initialize(folder, tensor_parallel_size=2, **SMALL)
    with pytest.raises(StartupError, match="128 query heads share a KV head"):
        platform.load_model(check(command, platform))


def test_quantized_weights_are_not_divided(checkpoint: Checkpoints, tmp_path: Path):
    shutil.copytree(checkpoint("llama", **SHAPE), tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    quantized = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": quantized}))
    platform = CudaPlatform(WorkerConfig(), host_device())
    command = initialize(file.parent, tensor_parallel_size=2, **SMALL)
    with pytest.raises(StartupError, match="--device cuda: the weights are quantized") as refused:
        platform.load_model(check(command, platform))
    assert "--pipeline-parallel-size" in refused.value.todo


def test_fewer_cards_than_ranks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kernels.triton.requirements.INTERPRETED", False)
    monkeypatch.setattr(limits, "_check_driver", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(StartupError, match="2 ranks take a CUDA device each, and torch finds 1"):
        limits.find_device(0, 2)


def test_a_step_whose_copy_never_ends_does_not_hold_its_rank():
    """The event of a step behind a copy from a rank that has died never passes."""

    def check_ranks() -> None:
        raise RankGone("rank 1 is gone")

    event = SimpleNamespace(query=lambda: False, synchronize=lambda: pytest.fail("it waits"))
    backend = SimpleNamespace(check_ranks=check_ranks)
    with pytest.raises(RankGone):
        CudaCompletion(backend, event, LaunchClock()).wait()  # type: ignore[arg-type]
