"""The step whose launches benchmarks/gpu_host.py counts is the one that serves."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from triton.runtime.jit import JITFunction

from benchmarks.gpu_host import MixedStep, TorchLaunches, without_launches
from benchmarks.gpu_models import SHAPES


def test_launches_of_a_mixed_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In each of two layers attention of rows that decode and of the prompt; nothing of torch but for the
    rotary angles, the embedding and the first sum."""
    monkeypatch.setattr(JITFunction, "run", lambda kernel, *args, **options: None)  # compiles nothing
    SHAPES["tiny"].write(tmp_path)
    with without_launches() as counts:
        step = MixedStep(tmp_path, 3, 20)
        assert not counts
        with TorchLaunches() as launches:
            step.run()
    assert counts["_prepare_kernel"] == 1
    assert counts["_store_kernel"] == counts["_activation_kernel"] == 2
    assert counts["_attention_kernel"] == 2 * 2
    assert launches.counts["embedding"] == launches.counts["cos"] == 1
    assert sum(launches.counts.values()) < 20
