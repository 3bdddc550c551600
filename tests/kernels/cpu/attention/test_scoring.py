"""Sinks: compiled code gives what Python gives, and float64."""

from functools import cache

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.attention.softmax import add_sink  # noqa: E402
from kernels.cpu.compiler.cache import compiled  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

machine_code = cache(compiled)


@pytest.mark.parametrize("sink", [-200.0, -3.0, 0.5, 2.0, 70.0])
def test_a_sink_adds_its_weight_to_the_sum(sink: float):
    """Of the largest score 0.5: from nothing to nearly all."""
    for function in (machine_code(add_sink), add_sink):
        totals, score = np.zeros(32, np.float32), np.array([sink], np.float32)
        totals[:2], totals[16:18] = 1.75, 0.5
        function(totals.ctypes.data, score.ctypes.data)
        np.testing.assert_allclose(totals[0], 1.75 + np.exp(sink - 0.5), rtol=2e-6)
        assert totals[1] == 1.75 and totals[16] == 0.5


def test_a_sink_far_above_all_scores_leaves_nothing():
    """Its weight is finite, also where no score was seen."""
    for largest in (-200.0, -np.inf):
        totals, score = np.zeros(32, np.float32), np.array([5.0], np.float32)
        totals[16] = largest
        machine_code(add_sink)(totals.ctypes.data, score.ctypes.data)
        np.testing.assert_allclose(totals[0], np.exp(80.0), rtol=1e-5)
