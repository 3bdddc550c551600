"""Norms, activations and rotary on a CPU: one call each, where torch needs several and rounds in between.

The operations are those of kernels.ops.layers, for bfloat16 and float32. A row's result depends on that row
alone, bit for bit. At few tokens the call is what costs: a norm with its addition takes 3 us instead of 16
for one row of 576 values. Head sizes are even.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from kernels.cpu.compiler.records import Operation, OwnRecord
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
from kernels.cpu.runtime.arena import Arena
from kernels.cpu.runtime.grain import row_grain as row_grain
from kernels.cpu.weight_forms import IN_16_BITS, WeightForms

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Team

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


@dataclass(frozen=True)
class RowKernels:
    """The compiled operations, and the arena of packed weights."""

    team: "Team"
    dtype: torch.dtype  # of activations and norm weights: bfloat16 or float32
    norm: Operation[NormRecord]  # kernels.cpu.elementwise.rms_norm.rms_norm
    silu: Operation[GatedSiluRecord]  # kernels.cpu.elementwise.activation.gated_silu
    rotary: Operation[RotaryRecord]  # kernels.cpu.elementwise.rotary.rotary
    layer: Operation[LayerNormRecord]  # kernels.cpu.elementwise.layer_norm.layer_norm
    activate: Operation[ActivationRecord]  # kernels.cpu.elementwise.plain_activation.activation
    gelu: Operation[GatedGeluRecord]  # kernels.cpu.elementwise.gated_gelu.gated_gelu
    add: Operation[ScaledAddRecord]  # kernels.cpu.elementwise.scaled_add.scaled_add
    logits: Operation[AdjustLogitsRecord]  # kernels.cpu.elementwise.adjust_logits.adjust_logits
    arena: Arena  # of the model's packed weights
    forms: WeightForms  # what these become

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
    ) -> torch.Tensor:
        """[..., E] -> [..., E], contiguous. offset: is added to the weight."""
        x = x.contiguous()
        normed = torch.empty_like(x)
        self._norm(x, 0, weight, normed, x, eps, offset, 1.0)
        return normed

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        offset: float = 0.0,
        factor: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the normed sum and the sum x * factor + residual, both [..., E]. Neither input is changed.
        offset: is added to the weight."""
        x, residual = x.contiguous(), residual.contiguous()
        normed, total = torch.empty_like(x), torch.empty_like(x)
        self._norm(x, residual.data_ptr(), weight, normed, total, eps, offset, factor)
        return normed, total

    def _norm(
        self,
        x: torch.Tensor,
        residual: int,
        weight: torch.Tensor,
        normed: torch.Tensor,
        total: torch.Tensor,
        eps: float,
        offset: float,
        factor: float,
    ) -> None:
        """residual: address, or 0."""
        width = weight.shape[0]
        record = NormRecord(
            x=x.data_ptr(),
            residual=residual,
            weight=weight.data_ptr(),
            normed=normed.data_ptr(),
            total=total.data_ptr(),
            width=width,
            eps=eps,
            weight_offset=offset,
            factor=factor,
            heads=1,
            stride=x.itemsize * width,
        )
        self.team.run_one(self.norm, x.numel() // width, record, row_grain(width))

    def layer_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the normed sum and the sum, both [..., E]. residual: None stands for zeros; then the sum is
        x."""
        x, width = x.contiguous(), weight.shape[0]
        normed, total = torch.empty_like(x), x
        if residual is not None:
            residual, total = residual.contiguous(), torch.empty_like(x)
        record = LayerNormRecord(
            x=x.data_ptr(),
            residual=0 if residual is None else residual.data_ptr(),
            weight=weight.data_ptr(),
            bias=bias.data_ptr(),
            normed=normed.data_ptr(),
            total=total.data_ptr(),
            width=width,
            eps=eps,
        )
        self.team.run_one(self.layer, x.numel() // width, record, row_grain(width))
        return normed, total

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """[T, I] -> [T, I]. name: one of ACTIVATIONS."""
        x = x.contiguous()
        out = torch.empty_like(x)
        record = activation_record(x, out, name)
        self.team.run_one(self.activate, x.shape[0], record, row_grain(x.shape[1]))
        return out

    def gated_silu(self, gate_up: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        """[T, 2 * I] -> [T, I]. factor: of the gate."""
        return self._gated(self.silu, partial(GatedSiluRecord, factor=factor), gate_up)

    def gated_gelu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * I] -> [T, I]: GELU in the form with tanh."""
        return self._gated(self.gelu, GatedGeluRecord, gate_up)

    def _gated(
        self,
        operation: Operation[OwnRecord],
        record: Callable[..., OwnRecord],
        gate_up: torch.Tensor,
    ) -> torch.Tensor:
        gate_up = gate_up.contiguous()
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, width))
        fields = record(gate_up=gate_up.data_ptr(), out=out.data_ptr(), width=width)
        self.team.run_one(operation, rows, fields, row_grain(width))
        return out

    def scaled_add(self, x: torch.Tensor, y: torch.Tensor | None, factor: float) -> torch.Tensor:
        """x * factor + y, [T, E]. y: None stands for zeros."""
        x, out = x.contiguous(), x.new_empty(x.shape)
        y = y if y is None else y.contiguous()
        self.team.run_one(self.add, len(x), scaled_add_record(x, y, out, factor), row_grain(x.shape[1]))
        return out

    def adjust_logits(self, logits: torch.Tensor, scale: float, cap: float | None) -> torch.Tensor:
        """[A, V] float32 -> [A, V]; V is at least 16. See kernels.ops.logits.adjust_logits."""
        logits, out = logits.contiguous(), logits.new_empty(logits.shape)
        record = adjust_logits_record(logits, out, scale, cap)
        self.team.run_one(self.logits, len(logits), record, row_grain(logits.shape[1]))
        return out

    def rotate(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, index: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[T, N, D] -> x itself, changed; its heads are contiguous, its tokens may be strided.

        cos, sin: [P, D] float32. index: [T] int64, rows of these; None: one after the other."""
        tokens, heads, head_dim = x.shape
        assert x.stride()[1:] == (head_dim, 1) and cos.is_contiguous() and sin.is_contiguous()
        record = RotaryRecord(
            x=x.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            index=0 if index is None else index.data_ptr(),
            stride=x.itemsize * x.stride(0),
            heads=heads,
            head_dim=head_dim,
            out=x.data_ptr(),
        )
        self.team.run_one(self.rotary, tokens, record, row_grain(heads * head_dim))
        return x


def activation_record(x: torch.Tensor, out: torch.Tensor, name: str) -> ActivationRecord:
    """x, out: [rows, width]. name: one of ACTIVATIONS."""
    linear, cubic = ACTIVATIONS[name]
    return ActivationRecord(x=x.data_ptr(), out=out.data_ptr(), width=x.shape[1], linear=linear, cubic=cubic)


def scaled_add_record(
    x: torch.Tensor, y: torch.Tensor | None, out: torch.Tensor, factor: float
) -> ScaledAddRecord:
    """x, y, out: [rows, width]."""
    y_at = 0 if y is None else y.data_ptr()
    return ScaledAddRecord(x=x.data_ptr(), y=y_at, out=out.data_ptr(), width=x.shape[1], factor=factor)


def adjust_logits_record(
    logits: torch.Tensor, out: torch.Tensor, scale: float, cap: float | None
) -> AdjustLogitsRecord:
    """logits, out: [rows, width]."""
    return AdjustLogitsRecord(
        x=logits.data_ptr(), out=out.data_ptr(), width=logits.shape[1], scale=scale, cap=cap or 0.0
    )


def row_kernels(
    forms: WeightForms = IN_16_BITS, arena: Arena | None = None, dtype: torch.dtype = torch.bfloat16
) -> RowKernels:
    """Returns the kernels, compiled if needed. Call only if kernels.cpu.requirements.why_not() is None.
    forms: what matrices become. arena: that of the model's weights, if they are in one. dtype:
    bfloat16 or float32."""
    from kernels.cpu.elementwise.activation import gated_silu  # compiles, the first time
    from kernels.cpu.elementwise.adjust_logits import adjust_logits
    from kernels.cpu.elementwise.gated_gelu import gated_gelu
    from kernels.cpu.elementwise.layer_norm import layer_norm
    from kernels.cpu.elementwise.plain_activation import activation
    from kernels.cpu.elementwise.rms_norm import rms_norm
    from kernels.cpu.elementwise.rotary import rotary
    from kernels.cpu.elementwise.scaled_add import scaled_add
    from kernels.cpu.runtime.thread_pool import TEAM

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
    return RowKernels(TEAM, dtype, *operations, adjust_logits, arena or Arena(), forms)
