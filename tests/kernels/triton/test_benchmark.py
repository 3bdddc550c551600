"""benchmarks/gpu/kernels.py has not been run on a GPU where this is: its works at least do what they say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import kernels as gpu_kernels
from benchmarks.gpu.attention_works import attention, make_inputs, our_call, peers
from benchmarks.gpu.kernels import error, line, works
from benchmarks.gpu.works import Setting

ROOT = Path(__file__).parents[3]


def test_works_give_what_torch_gives():
    """Small, in the interpreter; one of each kind."""
    seen = set()
    for make in works(Setting(torch.device("cpu"), torch.float16, 256)):
        work = make()
        kind = work.name.rstrip("0123456789 x,tokens")
        if kind not in seen and "0.5B" not in kind:
            seen.add(kind)
            if work.compare:
                assert (error(work) or 0.0) < 5e-3, work.name
            else:
                work.ours()
                if work.theirs is not None:
                    work.theirs()
    assert len(seen) > 8


def test_peers_compute_the_same():
    """Those that this machine has, on two rows that decode and on a prompt; the others say why not."""
    setting = Setting(torch.device("cpu"), torch.float32)
    for rows, length, queries in ((2, 70, 1), (1, 70, 70)):
        inputs = make_inputs(setting, (4, 2, 64), rows, length, queries)
        ours = our_call(inputs, False)()
        makers = peers(inputs)
        assert set(makers) == {"flash", "cudnn", "efficient", "flex", "flashinfer"}
        torch.testing.assert_close(makers["flash"]()(), ours, atol=1e-5, rtol=1e-5)
        with pytest.raises(RuntimeError, match="scaled_dot_product_attention|[Nn]o available"):
            makers["cudnn"]()()


def test_the_best_peer_is_the_one_that_counts(monkeypatch: pytest.MonkeyPatch):
    """A peer that refuses is named with its words and costs no figure."""
    setting = Setting(torch.device("cpu"), torch.float32)
    monkeypatch.setattr(gpu_kernels, "L2_BYTES", 0)
    monkeypatch.setattr(gpu_kernels, "CALLS", 1)

    def timed(calls: list) -> float:
        calls[0]()
        return 2e-6 if "Inputs" in repr(calls[0]) and "FLASH" not in repr(calls[0]) else 1e-6

    monkeypatch.setattr(gpu_kernels, "seconds", timed)
    monkeypatch.setattr("benchmarks.gpu.attention_works.flex", lambda inputs: 1 / 0)
    row = gpu_kernels.measure(lambda: attention(setting, "8B", (4, 2, 64), 2, 70, False), 1e12, 1e12)
    assert row["peer"] == "flash" and row["peers_us"] == {"torch": 2.0, "flash": 1.0}
    assert row["refusals"]["flex"] == "ZeroDivisionError: division by zero"
    assert set(row["refusals"]) == {"flex", "cudnn", "efficient", "flashinfer"}


def test_a_line_of_the_table():
    row = {"name": "a", "ours_us": 2.0, "peer": "b", "peer_us": 3.0, "per_second": 2.5e12, "unit": "GB/s"}
    assert (
        line(row | {"share": 0.6, "error": 1e-4}) == "| a | 2.0 | 3.0 b | 1.50 | 2500 GB/s | 60% | 1.0e-04 |"
    )


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ([sys.executable, "-m", "benchmarks.gpu.kernels"], "no CUDA device"),
        ([sys.executable, "-m", "pytest", "-m", "gpu", "tests/kernels/triton"], "no CUDA device"),
        ([sys.executable, "-m", "benchmarks.gpu.compile"], "TRITON_INTERPRET=1 is set"),
    ],
)
def test_refusals(command: list[str], what: str):
    """One line, at once, where there is no device, or one that is hidden."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode != 0
    assert what in run.stdout + run.stderr
