"""linear against float64."""

import pytest
import torch

from kernels.ops.layers.linear import linear
from tests.kernels.products import SHAPES, inputs
from tests.kernels.references.layers import linear_reference
from tests.kernels.tolerances import TOLERANCES, assert_close


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_torch(
    in_features: int, out_features: int, with_bias: bool, dtype: torch.dtype, absolute: float, relative: float
):
    x, weight, bias = inputs(5, in_features, out_features, dtype)
    added = bias if with_bias else None
    exact = linear_reference(x.double(), weight.double(), bias.double() if with_bias else None)
    assert_close(linear_reference(x, weight, added), exact, absolute, relative)
    assert_close(linear(x, weight, added), exact, absolute, relative)
    assert linear(x, weight, added, wide=True).dtype == torch.float32
