"""The steps whose launches benchmarks/gpu_host.py counts are those that serve."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")

from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from benchmarks.gpu_host import MixedSteps, TorchLaunches, without_launches
from benchmarks.gpu_models import SHAPES


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts launches of Triton's kernels, by name; nothing is compiled, nor interpreted where tests of
    kernels in this process have them interpreted."""
    monkeypatch.setattr(JITFunction, "run", lambda kernel, *args, **options: None)
    with without_launches() as counts:

        def count(kernel: InterpretedFunction, *args: object, **options: object) -> None:
            counts[kernel.__name__] += 1

        monkeypatch.setattr(InterpretedFunction, "run", count)
        yield counts


def test_launches_of_a_mixed_step(tmp_path: Path, launched: Counter[str]):
    """Kernel by kernel: in each of two layers attention is one launch for all rows, and a merge. In graphs,
    of the forward pass and of sampling: nothing."""
    SHAPES["tiny"].write(tmp_path)
    steps = MixedSteps(tmp_path, 3, 20)
    launched.clear()
    with TorchLaunches() as launches:
        steps.run()
    assert launched["_prepare_kernel"] == launched["_work_kernel"] == 1
    assert launched["_store_kernel"] == launched["_activation_kernel"] == 2
    assert launched["_attention_kernel"] == launched["_merge_shared_kernel"] == 2
    assert launches.counts["embedding"] == launches.counts["cos"] == 1

    steps.capture()
    launched.clear()
    steps.device.copies = 0
    steps.run()
    assert steps.device.graphs == 2
    assert steps.device.copies == 2  # columns to the device, tokens from it
    assert not launched
