"""What a loaded model promises about equal results."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.cpu.instruction_sets import target_set
from pagewire.config import WorkerConfig
from pagewire.internal.v1.engine_pb2 import ModelFacts
from tests.worker.fakes import initialize
from worker.cpu import kernel_selection
from worker.exactness import Exactness, on_cpu, on_cuda
from worker.load import load
from worker.platforms.cpu import CpuPlatform


def facts(folder: Path, **changes: object) -> ModelFacts:
    return load(initialize(folder, **changes), CpuPlatform(WorkerConfig(threads=1)))[1].model


def test_torch_promises_no_bits(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel_selection, "why_not", lambda: "a test")
    found = facts(checkpoint("llama"), dtype="bfloat16")
    assert found.arithmetic == "torch" and "another order" in found.exactness_caveat


@pytest.mark.cpu_kernels
def test_kernels_promise_bits(checkpoint: Callable[..., Path]):
    """With attention kernels for these sizes, and where torch attends."""
    fitting = {"dtype": "bfloat16", "block_size": 16}
    found = facts(checkpoint("llama", head_dim=32), **fitting)
    assert found.exactness_caveat == "" and found.arithmetic == f"{target_set().name}, tree"
    found = facts(checkpoint("llama"), dtype="bfloat16")  # heads of 12 values
    assert found.exactness_caveat == "" and "torch" in found.arithmetic


def test_descriptions_differ():
    """Engines with equal descriptions give equal bits, so no two kinds share one."""
    cpus = [on_cpu(None, False), on_cpu("avx2", True), on_cpu("avx2", False)]
    gpus = [on_cuda("sm_90", True), on_cuda("sm_90", False), on_cuda("sm_80", False)]
    kinds = [Exactness("simulated"), *cpus, *gpus]
    kinds += [kind.with_cache("fp8_e4m3") for kind in kinds[1:]]
    assert len({kind.arithmetic for kind in kinds}) == len(kinds)
    of_16_bits = [True, False, False, True, False, False]
    assert [bool(kind.caveat) for kind in kinds] == [False, *of_16_bits, *of_16_bits]
