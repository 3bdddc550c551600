"""The operations of a sampler together."""

from kernels.ops.sampling.columns import NEUTRAL
from kernels.triton.sampling.ops import TritonSampling


def test_no_column_is_ignored():
    """A new filter has a kernel here: torch's sums on a device depend on the batch."""
    assert {"temperature", "typical_p", *TritonSampling.FILTERED} == set(NEUTRAL)
