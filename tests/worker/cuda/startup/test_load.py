"""From Initialize to a runner: what is refused, how many blocks fit, and that warm-up meets everything."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.triton import requirements as support
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import unpack_u32
from tests.worker.cuda.host_devices import GIB, SMALL, host_device, interpret, load_on
from tests.worker.cuda.serve_compiling import MEMORY
from tests.worker.fakes import initialize
from worker.cuda.device import HostDevice, Memory
from worker.cuda.graphs import graph_sizes, sampling_sizes
from worker.cuda.startup import limits
from worker.cuda.startup.memory import (
    REUSED_BLOCKS,
    Demand,
    choose_num_blocks,
    largest_steps,
    useful_blocks,
)
from worker.cuda.startup.warm_up import warm_up
from worker.startup.model import choose_device
from worker.step.rows import RowTable

ROOT = Path(__file__).parents[4]
Checkpoints = Callable[..., Path]
MIB = 1 << 20
DEMAND = Demand(bytes_per_block=MIB, requested=0, useful=5000, per_sequence=0, utilization=0.9)


@pytest.mark.parametrize(
    ("tokens", "counts", "graph_mib"), [(10, [4, 3, 3], 50), (2, [1, 1], 700), (64, [5, 5, 5], 700)]
)
def test_largest_steps(tokens: int, counts: list[int], graph_mib: int):
    """All tokens that a step may have, all rows sampling, with all that a request can ask for; then the
    graphs, of which the two largest are captured and each of the others is expected to add what the second
    has added; then the largest step once more, which takes less beside its graph. No context is exceeded.
    Where rows pool, none samples."""
    plans: list[worker_pb2.StepPlan] = []
    captured: list[int] = []
    sampled: list[int] = []

    class Backend:
        bytes_per_block = MIB
        model = SimpleNamespace(vision=None)

        def capture(self, size: int) -> None:
            captured.append(size)

        def capture_sampling(self, size: int) -> None:
            sampled.append(size)

        def run_adapted(self, size: int) -> None:
            assert size == min(tokens, 3 * 5)

    class Runner:
        rows = RowTable(max_num_rows=3, max_model_len=6, vocab_size=99, block_size=16, num_blocks=1)
        backend = Backend()

        def execute(self, plan: worker_pb2.StepPlan) -> None:
            plans.append(plan)

    class Device(HostDevice):
        def peak_of(self, run: Callable[[], object]) -> int:
            run()
            return GIB - (GIB // 2 if captured else 0)

        def memory(self) -> Memory:
            taken = graph_mib + 2 * (len(captured) - 1) if captured else 0
            taken += 7 + len(sampled) if sampled else 0
            return Memory(9 * GIB, 8 * GIB - taken * MIB)

    for captures, pools in ((True, False), (False, False), (True, True)):
        plans.clear()
        captured.clear()
        sampled.clear()
        found = largest_steps(Runner(), tokens, captures, Device(), pools)  # type: ignore[arg-type]
        sizes = graph_sizes(min(tokens, 3 * 5))
        assert captured == (list(sizes[:-3:-1]) if captures else [])
        rows = sampling_sizes(min(tokens, 3))
        assert sampled == (list(rows[:-3:-1]) if captures and not pools else [])
        graphs = (graph_mib + 2 * (len(sizes) - 1) + (0 if pools else 7 + len(rows))) * MIB
        assert found == (max(GIB, GIB // 2 + graphs) if captures else GIB)
        few, largest, *others = (plan for plan in plans if plan.rows and unpack_u32(plan.counts) != [1])
        assert unpack_u32(few.counts) == [1, 1]
        if captures:
            assert others.pop() == largest
        assert [sum(unpack_u32(plan.counts)) for plan in others] == [size for size in captured if size > 1]
        assert unpack_u32(largest.counts) == counts
        assert unpack_u32(largest.sample_rows) == unpack_u32(largest.rows) == list(range(len(counts)))
        news = [new for plan in plans for new in plan.new_rows]
        assert all(new.HasField("pooling") is pools for new in news)
        assert all(
            bool(new.logprobs.top_n and new.sampling.presence_penalty) is not pools
            for new in largest.new_rows
        )
        assert largest.new_rows[0].HasField("prompt_logprobs") is not pools


def test_blocks_that_fit():
    """Of 10 GiB, 2 are in use and half a one is for steps; a tenth stays free."""
    memory = Memory(total=10 * GIB, free=8 * GIB)
    room = int(0.9 * 10240) - 2048 - 512
    assert choose_num_blocks(memory, GIB // 2, DEMAND, "a GPU") == room - 1
    asked = Demand(MIB, requested=700, useful=5000, per_sequence=0, utilization=0.9)
    assert choose_num_blocks(memory, GIB // 2, asked, "a GPU") == 700
    tiny = Demand(64, requested=0, useful=5000, per_sequence=0, utilization=0.9)
    assert choose_num_blocks(memory, 0, tiny, "a GPU") == REUSED_BLOCKS
    assert choose_num_blocks(memory, 0, replace(tiny, reused=0), "a GPU") == 5000


def test_blocks_of_encoders():
    """For the prompts of two steps: of 4,096 tokens in 256 rows, of which each has a last block that is not
    full; or of fewer rows than that."""
    sizes = worker_pb2.Initialize(max_num_seqs=256, max_num_batched_tokens=4096, block_size=16)
    assert useful_blocks(sizes, 32, bidirectional=False) == 256 * 32
    assert useful_blocks(sizes, 32, bidirectional=True) == 2 * (256 + 256)
    sizes.max_num_seqs = 3
    assert useful_blocks(sizes, 32, bidirectional=True) == 3 * 32


@pytest.mark.parametrize(
    ("changes", "why", "todo"),
    [
        ({"utilization": 0.1}, "not enough for one block", "a higher --gpu-memory-utilization"),
        ({"requested": 9000}, "7167 blocks, not 9000", "--num-blocks 7167 or less"),
        ({"per_sequence": 8192}, "one sequence of --max-model-len takes 8192", "a --max-model-len of 1/2"),
    ],
)
def test_a_device_that_is_too_small(changes: dict[str, float], why: str, todo: str):
    demand = Demand(**{**vars(DEMAND), "useful": 9000, **changes})  # type: ignore[arg-type]
    memory = Memory(total=10 * GIB, free=8 * GIB)
    with pytest.raises(StartupError, match=why) as error:
        choose_num_blocks(memory, 0, demand, "a GPU")
    assert "a GPU has 10.0 GiB" in str(error.value) and todo in error.value.todo


@pytest.mark.parametrize(
    ("overrides", "changes", "why", "todo"),
    [
        ({}, {"block_size": 8}, "--block-size is 8", "16, 32, 64 or 128"),
        ({}, {"block_size": 48}, "--block-size is 48", "16, 32, 64 or 128"),
        ({"head_dim": 260}, {}, "the head size is 260; up to 256", "--device cpu"),
        ({"n_embd": 52}, {}, "the head size is 13; even ones", "--device cpu"),
        ({"kv_lora_rank": 520}, {}, "kv_lora_rank is 520; up to 512 is supported", "--device cpu"),
        ({}, {"data_parallel_size": 2}, "2 engine cores would share", "CUDA_VISIBLE_DEVICES"),
        ({}, {"max_num_seqs": 1 << 24}, "more than 32-bit numbers count", "--max-num-seqs"),
    ],
)
def test_what_is_refused(
    overrides: dict[str, int],
    changes: dict[str, int],
    why: str,
    todo: str,
    checkpoint: Checkpoints,
    monkeypatch: pytest.MonkeyPatch,
):
    """Before anything is allocated."""
    monkeypatch.setattr(support, "INTERPRETED", True)
    families = {"n_embd": "gpt2", "kv_lora_rank": "youtu"}
    folder = checkpoint(families.get(*overrides, "llama") if overrides else "llama", **overrides)
    with pytest.raises(StartupError, match=why) as error:
        load_on(host_device(), initialize(folder, **(SMALL | changes)))
    assert todo in error.value.todo


def test_weights_that_do_not_fit(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """They are counted before they are made."""
    interpret(monkeypatch)
    folder = checkpoint("llama", num_hidden_layers=1, intermediate_size=4000)
    with pytest.raises(StartupError, match="the weights take .* GiB in float32, and Triton's") as error:
        load_on(HostDevice(Memory(GIB, MIB)), initialize(folder, **SMALL))
    assert "--dtype bfloat16" in error.value.todo


def test_no_device(monkeypatch: pytest.MonkeyPatch):
    """Whether torch could use one, or there is none. Under Triton's interpreter, a HostDevice is one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for built, why in (("13.0", "finds no CUDA device"), (None, "built without CUDA")):
        monkeypatch.setattr(torch.version, "cuda", built)
        with pytest.raises(StartupError, match=why) as error:
            limits.find_device()
        assert error.value.todo.endswith("or use --device cpu")
    monkeypatch.setattr(support, "INTERPRETED", True)
    assert limits.find_device().place.type == "cpu"


def test_a_device_that_triton_cannot_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """It compiles its way to the driver: without a compiler, or Python's headers, that is told at once."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(limits.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(StartupError, match="finds no Python.h"):
        limits.find_device()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StartupError, match="finds no C compiler"):
        limits.find_device()


def test_auto_takes_a_gpu_that_our_kernels_are_for(monkeypatch: pytest.MonkeyPatch):
    assert choose_device("cpu").type == "cpu" and choose_device("cuda").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    for capability, kind in (((9, 0), "cuda"), ((7, 5), "cpu")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        assert choose_device("auto").type == kind


def test_graph_sizes():
    """Dense where steps are small; the largest is what rows there are."""
    assert graph_sizes(1) == (1,)
    assert graph_sizes(6) == (1, 2, 4, 6)
    assert graph_sizes(256)[:6] == (1, 2, 4, 8, 16, 24) and graph_sizes(256)[-1] == 256
    assert len(graph_sizes(512)) == 51 and len(graph_sizes(2048)) == 63 and len(graph_sizes(8192)) == 79
    assert graph_sizes(700)[-3:] == (512, 640, 700) and graph_sizes(2400)[-3:] == (2048, 2304, 2400)
    sizes = graph_sizes(1 << 16)
    assert all(size <= before * 1.125 for before, size in pairwise(sizes) if before >= 2048)
    assert all(size % 128 == 0 for size in sizes if size > 512)


def test_sampling_sizes():
    """As parameters of rows are gathered: in fours."""
    assert sampling_sizes(1) == (4,) and sampling_sizes(7) == (4, 8)
    assert sampling_sizes(256)[:8] == (4, 8, 16, 32, 48, 64, 96, 128) and len(sampling_sizes(256)) == 12
    sizes = sampling_sizes(5001)
    assert sizes[-1] == 5004 and all(size % 4 == 0 for size in sizes)
    assert all(size <= before + max(32, before / 8) for before, size in pairwise(sizes))


MAX_COMPILE_S = 1200
"""How long compiling all kernels may take where many other processes compute."""


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    """What tests/worker/cuda/serve_compiling.py says: Triton reads kernels, and launches nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.worker.cuda.serve_compiling"]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=MAX_COMPILE_S
    )
    assert run.returncode == 0, run.stderr
    story: dict[str, Any] = json.loads(run.stdout)
    return story


def test_what_is_captured_has_been_launched():
    """At that size, while there was no graph that a larger one could have stood in for."""
    launched: list[int] = []
    captured: list[int] = []
    sampled: list[int] = []

    class Runner:
        rows = RowTable(max_num_rows=40, max_model_len=64, vocab_size=99, block_size=16, num_blocks=5)

        most_queries = 1

        @property
        def backend(self) -> "Runner":
            return self

        def score(self, count: int) -> None:
            """Has nothing to compute."""

        def score_adapted(self, count: int) -> None:
            """Has no adapters."""

        def run_seeing_media(self, size: int) -> None:
            """Sees no media."""

        def execute(self, plan: worker_pb2.StepPlan) -> None:
            if not captured:
                launched.append(sum(unpack_u32(plan.counts)))

        def capture(self, size: int) -> None:
            assert size in launched
            captured.append(size)

        def capture_sampling(self, size: int) -> None:
            assert len(captured) == len(graph_sizes(512))
            sampled.append(size)

    for pools, sizes in ((False, [40, 32, 16, 8, 4]), (True, [])):
        launched, captured, sampled = [], [], []
        warm_up(Runner(), 512, True, lambda fraction: None, pools=pools)  # type: ignore[arg-type]
        assert captured == list(reversed(graph_sizes(512)))
        assert sampled == sizes


@pytest.mark.timeout(MAX_COMPILE_S)
def test_nothing_is_compiled_while_serving(served: dict[str, Any]):
    """Neither in graphs nor without, nor for experts and latents; and the watch, which would tell, sees what
    there is to see."""
    for mode in ("graphs", "eager", "adapters"):
        assert served[mode]["late"] == []
        assert "_attention_kernel" in served[mode]["at_start"]
    assert {"_shrink_kernel", "_look_up_kernel"} < set(served["adapters"]["at_start"])
    assert served["experts"]["late"] == served["adapted experts"]["late"] == []
    assert "_pair_place_kernel" in served["adapted experts"]["at_start"]
    assert {"_grouped_kernel", "_latent_kernel"} < set(served["experts"]["at_start"])
    assert "_attention_kernel" in served["cold"]["late"]
    assert served["cold"]["watched"] == len(served["cold"]["at_start"]) + len(served["cold"]["late"])


@pytest.mark.timeout(MAX_COMPILE_S)
def test_a_whole_start(served: dict[str, Any]):
    """Profile, cache, warm-up, graphs, measurements; the rows are all unused again. The context does not fit
    into the device's memory: the core is told how many blocks there are, and makes it shorter."""
    story = served["graphs"]
    assert story["told"] == ["weights", "profile", "KV cache", "warm-up"]
    assert story["graphs"] == [1, 2, 4, *range(8, 65, 8)] and served["eager"]["graphs"] == []
    per_block = 2 * 2 * 12 * 16 * 4
    copies = 20 * per_block  # one for each row
    room = int(0.9 * MEMORY.total) - (MEMORY.total - MEMORY.free) - copies
    assert story["num_blocks"] == room // per_block - 1
    assert story["max_model_len"] > 16 * story["num_blocks"]
    assert story["prefill_us_per_token"] > 0 and story["rows_in_use"] == 0
