"""The compiled operations on rows, for modules that do not compile them themselves."""

import math
from typing import NamedTuple

import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.elementwise.records import (
    ActivationRecord,
    AdjustLogitsRecord,
    GatedGeluRecord,
    GatedSiluRecord,
    LayerNormRecord,
    NormRecord,
    RotaryRecord,
    ScaledAddRecord,
)

_GELU_NEW = 2 * math.sqrt(2 / math.pi)
ACTIVATIONS = {
    "silu": (1.0, 0.0),
    "swish": (1.0, 0.0),
    "quick_gelu": (1.702, 0.0),
    "gelu_new": (_GELU_NEW, 0.044715 * _GELU_NEW),
    "gelu_fast": (_GELU_NEW, 0.044715 * _GELU_NEW),
    "gelu_pytorch_tanh": (_GELU_NEW, 0.044715 * _GELU_NEW),
    "relu": (0.0, 0.0),
}
"""The linear and the cubic factor of kernels.cpu.elementwise.plain_activation, by the names of
kernels.ops.layers.activation; (0, 0) stands for relu."""


class RowKernels(NamedTuple):
    """Of activations and norm weights of one dtype."""

    norm: Operation[NormRecord]  # kernels.cpu.elementwise.rms_norm.rms_norm
    silu: Operation[GatedSiluRecord]  # kernels.cpu.elementwise.activation.gated_silu
    rotary: Operation[RotaryRecord]  # kernels.cpu.elementwise.rotary.rotary
    layer: Operation[LayerNormRecord]  # kernels.cpu.elementwise.layer_norm.layer_norm
    activate: Operation[ActivationRecord]  # kernels.cpu.elementwise.plain_activation.activation
    gelu: Operation[GatedGeluRecord]  # kernels.cpu.elementwise.gated_gelu.gated_gelu
    add: Operation[ScaledAddRecord]  # kernels.cpu.elementwise.scaled_add.scaled_add
    logits: Operation[AdjustLogitsRecord]  # kernels.cpu.elementwise.adjust_logits.adjust_logits


def row_kernels(dtype: torch.dtype) -> RowKernels:
    """Returns the operations, compiled if needed. Call only if kernels.cpu.requirements.why_not() is None.
    dtype: bfloat16 or float32."""
    from kernels.cpu.elementwise.activation import gated_silu  # compiles, the first time
    from kernels.cpu.elementwise.adjust_logits import adjust_logits
    from kernels.cpu.elementwise.gated_gelu import gated_gelu
    from kernels.cpu.elementwise.layer_norm import layer_norm
    from kernels.cpu.elementwise.plain_activation import activation
    from kernels.cpu.elementwise.rms_norm import rms_norm
    from kernels.cpu.elementwise.rotary import rotary
    from kernels.cpu.elementwise.scaled_add import scaled_add

    operations = rms_norm, gated_silu, rotary, layer_norm, activation, gated_gelu, scaled_add
    if dtype == torch.float32:
        from kernels.cpu.elementwise import float32_rows as wide

        operations = (
            wide.rms_norm_float32,
            wide.gated_silu_float32,
            wide.rotary_float32,
            wide.layer_norm_float32,
            wide.activation_float32,
            wide.gated_gelu_float32,
            wide.scaled_add_float32,
        )
    return RowKernels(*operations, adjust_logits)
