"""Operations are those of Triton for CUDA tensors, and when told to interpret."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.api import Ops, default_ops
from kernels.ops.attention.block_copies import copy_blocks
from kernels.triton import blocks
from kernels.triton import requirements as support
from tests.kernels.tolerances import random

ROOT = Path(__file__).parents[3]


def test_launchers_choose(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """It calls its variant once."""
    called = []
    monkeypatch.setattr(blocks, "copy_blocks", lambda *args: called.append("copy_blocks"))
    x = random(2, 32, dtype=torch.float32).to(device)
    ids = torch.tensor([0], device=device)

    def copy() -> None:
        copy_blocks(x.view(2, 1, 1, 4, 8), ids, ids)

    if device.type == "cpu":
        copy()
        assert called == []
        monkeypatch.setattr(support, "INTERPRETED", True)
    copy()
    assert called == ["copy_blocks"]


def test_layers_compute_by_triton(monkeypatch: pytest.MonkeyPatch):
    """Where nothing else is chosen."""
    from kernels.triton_ops import TritonOps

    assert type(default_ops()) is Ops
    monkeypatch.setattr(support, "INTERPRETED", True)
    assert type(default_ops()) is TritonOps


def test_triton_is_not_imported_for_nothing():
    """A CPU-only install has none."""
    code = (
        "import sys, torch; sys.modules['triton'] = None\n"
        "from kernels.api import default_ops\n"
        "import worker.cpu.backend\n"
        "default_ops().rms_norm(torch.ones(2, 8), torch.ones(8), 1e-5)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_why_not(monkeypatch: pytest.MonkeyPatch):
    """In words, for the line at start-up."""
    cpu = torch.device("cpu")
    assert support.why_not(cpu, torch.float16, 64) == "the kernels are for CUDA, not for cpu"
    monkeypatch.setattr(support, "INTERPRETED", True)
    assert support.why_not(cpu, torch.float16, 64) is None
    assert "int8" in (support.why_not(cpu, torch.int8, 64) or "")
    assert "512" in (support.why_not(cpu, torch.float16, 512) or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert "7.5" in (support.why_not(torch.device("cuda"), torch.float16, 64) or "")
    assert support.why_not(cpu, torch.float16, 64, torch.float8_e4m3fn) is None
    assert "int8" in (support.why_not(cpu, torch.float16, 64, torch.int8) or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    cuda = torch.device("cuda")
    assert support.why_not(cuda, torch.float16, 64) is None
    assert "8 bits" in (support.why_not(cuda, torch.float16, 64, torch.float8_e4m3fn) or "")
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    assert support.why_not(cpu, torch.float16, 64) == "triton is not installed"
