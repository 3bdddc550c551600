"""Random weights in 4 and 8 bits for measurements on a GPU."""

import torch

from benchmarks.gpu.works import Setting
from kernels.triton.matmul.low_bit_weight import Code, LowBitWeight

FORMS = {
    "int4-g32": (Code.INT4, 32),
    "int4-g128": (Code.INT4, 128),
    "int8": (Code.INT8, 1 << 20),
    "e4m3": (Code.E4M3, 128),
    "e2m1": (Code.E2M1, 32),
}
"""Codes and groups of inputs."""
NO_NAN = 0xF7
"""Bits of e4m3 that no NaN has alone."""


def random_low_bits(setting: Setting, shape: tuple[int, ...], form: str) -> LowBitWeight:
    """Returns a weight [N, K] or [experts, N, K] of finite values below 1, those of padding too. form:
    of FORMS."""
    code, group_size = FORMS[form]
    weight = LowBitWeight.empty(shape, code, group_size, setting.device)
    weight.codes.random_(0, 256)
    if code is Code.E4M3:
        weight.codes.bitwise_and_(NO_NAN)
    largest = {Code.INT4: 8, Code.E2M1: 12, Code.INT8: 128, Code.E4M3: 240}[code]
    scales = torch.rand(weight.params.shape, device=setting.device) / largest
    bits = scales.view(torch.int32)
    weight.params.copy_(bits & -256 | 8 if code is Code.INT4 else bits)
    return weight
