"""Weights of few bits where no Triton runs: as unpacked ones."""

import torch

from kernels.ops.layers.linear import linear, low_bit_linear
from kernels.triton.matmul.low_bit_weight import Code, LowBitWeight, round_to_int8
from tests.kernels.tolerances import random


def test_unpacked() -> None:
    weight, x = random(5, 40, dtype=torch.float32), random(3, 40, dtype=torch.bfloat16, seed=1)
    held = LowBitWeight.empty((5, 40), Code.INT8, 40, torch.device("cpu"))
    held.put(torch.arange(5), *round_to_int8(weight))
    assert torch.equal(low_bit_linear(x, held, wide=True), linear(x, held.values().bfloat16(), wide=True))
