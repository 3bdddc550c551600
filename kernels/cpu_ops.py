"""The operations of layers by the CPU's compiled kernels: one call each, where torch needs several and
rounds in between.

For bfloat16 and float32. A row's result depends on that row alone, bit for bit. At few tokens the call costs
most: a norm with its addition takes 3 us instead of 16 for one row of 576 values. torch computes what no
kernel does.

An operation is a record, which is run at once; kernels.cpu.program puts the same records into a program.
"""

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from kernels.cpu.adapters.pack import PackedAdapter
from kernels.cpu.adapters.records import AT_ONCE, AdaptRecord, PairAdaptersRecord
from kernels.cpu.adapters.records import scratch_bytes as adapter_scratch
from kernels.cpu.attention.segments import SegmentPlans
from kernels.cpu.compiler.records import Operation
from kernels.cpu.elementwise.records import (
    ActivationRecord,
    AdjustLogitsRecord,
    ClampedSwigluRecord,
    GatedActivationRecord,
    LayerNormRecord,
    NormRecord,
    RotaryRecord,
    ScaledAddRecord,
)
from kernels.cpu.experts.records import CombineRecord, RouteRecord, WeighRecord
from kernels.cpu.layer_kernels import (
    AdapterKernels,
    ExpertKernels,
    adapter_kernels,
    expert_kernels,
    row_kernels,
)
from kernels.cpu.runtime.grain import row_grain
from kernels.cpu_state_ops import CpuStateOps
from kernels.ops.experts.dispatch import or_ones
from kernels.ops.experts.routing import Routing
from kernels.ops.layers.adapters import AdapterWeights, LayerParts, StepAdapters

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Team

_SILU = ("silu", "swish")
_GELU_TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")
_LINEAR = 2 * math.sqrt(2 / math.pi)
ACTIVATIONS = {
    **dict.fromkeys(_SILU, (1.0, 0.0)),
    **dict.fromkeys(_GELU_TANH, (_LINEAR, 0.044715 * _LINEAR)),
    "quick_gelu": (1.702, 0.0),
    "gelu": (0.0, 1.0),
    "relu": (0.0, 0.0),
}
"""The linear and the cubic factor of kernels.cpu.elementwise.activations, by the names of
kernels.ops.layers.activation; (0, 0) stands for relu, and (0, 1) for gelu."""


def _address(x: torch.Tensor | None) -> int:
    """Returns the address of what a record may lack."""
    return 0 if x is None else x.data_ptr()


class CpuOps(CpuStateOps):
    """Operations on activations of one dtype. Construct it only if kernels.cpu.requirements.why_not() is
    None: what all models need is compiled then, the rest when it is used first."""

    def __init__(self, dtype: torch.dtype, team: "Team | None" = None) -> None:
        """dtype: bfloat16 or float32. team: None for that of the process."""
        super().__init__(dtype, team)
        self.rows = row_kernels(dtype)

    @cached_property
    def experts(self) -> ExpertKernels:
        """The compiled operations of mixtures of experts."""
        return expert_kernels(self.dtype)

    @cached_property
    def adapters(self) -> AdapterKernels:
        """The compiled operations of adapters."""
        return adapter_kernels(self.dtype)

    @cached_property
    def segments(self) -> SegmentPlans:
        """The plans of full_attention()."""
        return SegmentPlans(self.dtype, self.team)

    def adapting(self, y: torch.Tensor) -> Operation[AdaptRecord]:
        """Returns the operation that adds to such outputs."""
        return self.adapters.add if y.dtype == self.dtype else self.adapters.add_wide

    def pack_adapter(self, layers: Sequence[LayerParts]) -> AdapterWeights:
        return PackedAdapter(layers)

    def adapt(
        self, y: torch.Tensor, x: torch.Tensor, layer: int, adapters: StepAdapters | None
    ) -> torch.Tensor:
        if adapters is not None:
            x = x.contiguous()
            record = self._adapt_record(y, x, layer)
            record.tokens, record.adapters = adapters.tokens.data_ptr(), adapters.addresses.data_ptr()
            self.run(self.adapting(y), len(adapters.tokens), record, AT_ONCE)
        return y

    def adapt_experts(
        self, y: torch.Tensor, x: torch.Tensor, layer: int, adapters: StepAdapters, order: Any
    ) -> torch.Tensor:
        x = x.contiguous()
        sort, pairs = self._pair_record(order.experts, order.places, len(order.counts))
        sort.tokens, sort.adapters = adapters.tokens.data_ptr(), adapters.addresses.data_ptr()
        sort.count = len(adapters.tokens)
        self.run(self.experts.pair, 1, sort, 1)
        record = self._adapt_record(y, x, layer)
        record.tokens, record.adapters = pairs[0].data_ptr(), pairs[1].data_ptr()
        self.run(self.adapters.add, sort.count * sort.top_k, record, AT_ONCE)
        return y

    def adapt_embeddings(
        self,
        y: torch.Tensor,
        token_ids: torch.Tensor,
        layer: int,
        adapters: StepAdapters,
        vocab_size: int,
    ) -> torch.Tensor:
        token_ids = token_ids.contiguous()
        record = AdaptRecord(
            tokens=adapters.tokens.data_ptr(),
            adapters=adapters.addresses.data_ptr(),
            layer=layer,
            x=token_ids.data_ptr(),
            width=vocab_size,
            y=y.data_ptr(),
            columns=y.shape[1],
            scratch=self.team.scratch(adapter_scratch(0)),
        )
        self.run(self.adapters.embed, len(adapters.tokens), record, 1)
        return y

    def _pair_record(
        self, experts: torch.Tensor, places: torch.Tensor, num_experts: int
    ) -> tuple[PairAdaptersRecord, list[torch.Tensor]]:
        """Returns the record without the tokens of a step, and the memory that it writes: `pairs`,
        `pair_adapters` and `starts`. experts, places: [T, k]."""
        pairs, addresses = (self.empty(places.shape, torch.int64) for _ in range(2))
        starts = self.constant(torch.empty(num_experts, dtype=torch.int64))
        record = PairAdaptersRecord(
            top_k=places.shape[1],
            num_experts=num_experts,
            experts=experts.data_ptr(),
            places=places.data_ptr(),
            starts=starts.data_ptr(),
            pairs=pairs.data_ptr(),
            pair_adapters=addresses.data_ptr(),
        )
        return record, [pairs, addresses, starts]

    def _adapt_record(self, y: torch.Tensor, x: torch.Tensor, layer: int) -> AdaptRecord:
        """Returns the record without the tokens of a step. x, y: contiguous."""
        return AdaptRecord(
            layer=layer,
            x=x.data_ptr(),
            width=x.shape[1],
            y=y.data_ptr(),
            columns=y.shape[1],
            scratch=self.team.scratch(adapter_scratch(x.shape[1])),
        )

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
    ) -> torch.Tensor:
        return self.add_rms_norm(x, None, weight, eps, offset)[0]

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        offset: float = 0.0,
        factor: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        stride = x.itemsize * weight.shape[0]
        record = partial(NormRecord, weight_offset=offset, factor=factor, heads=1, stride=stride)
        return self._normed(self.rows.norm, record, x, residual, weight, eps)

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        if weight is None or bias is None:
            return super().layer_norm(x, weight, bias, eps)
        record = partial(LayerNormRecord, bias=bias.data_ptr())
        return self._normed(self.rows.layer, record, x, None, weight, eps)[0]

    def add_layer_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if weight is None or bias is None:
            return super().add_layer_norm(x, residual, weight, bias, eps)
        record = partial(LayerNormRecord, bias=bias.data_ptr())
        return self._normed(self.rows.layer, record, x, residual, weight, eps)

    def _normed(
        self,
        operation: Operation[Any],
        record: Any,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the normed sum and the sum; without a residual that is x. record: with other fields."""
        x, residual = x.contiguous(), None if residual is None else residual.contiguous()
        normed, width = self.empty(x.shape, x.dtype), weight.shape[0]
        total = x if residual is None else self.sum_of(residual)
        fields = record(
            x=x.data_ptr(),
            residual=_address(residual),
            weight=weight.data_ptr(),
            normed=normed.data_ptr(),
            total=total.data_ptr(),
            width=width,
            eps=eps,
        )
        self.run(operation, x.numel() // width, fields, row_grain(width))
        return normed, total

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if name not in ACTIVATIONS:
            return super().activation(x, name)
        x, (linear, cubic) = x.contiguous(), ACTIVATIONS[name]
        out = self.empty(x.shape, x.dtype)
        record = ActivationRecord(
            x=x.data_ptr(), out=out.data_ptr(), width=x.shape[1], linear=linear, cubic=cubic
        )
        self.run(self.rows.activate, len(x), record, row_grain(x.shape[1]), repeatable=True)
        return out

    def gated_activation(self, gate_up: torch.Tensor, name: str, factor: float = 1.0) -> torch.Tensor:
        if name in _SILU:
            return self._gated(self.rows.silu, partial(GatedActivationRecord, factor=factor), gate_up)
        if name in (*_GELU_TANH, "gelu") and factor == 1:
            record = partial(GatedActivationRecord, exact=name == "gelu")
            return self._gated(self.rows.gelu, record, gate_up)
        return super().gated_activation(gate_up, name, factor)

    def clamped_swiglu(self, gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
        record = partial(ClampedSwigluRecord, alpha=alpha, limit=limit)
        return self._gated(self.rows.swiglu, record, gate_up)

    def _gated(self, operation: Operation[Any], record: Any, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * I] -> [T, I]."""
        gate_up = gate_up.contiguous()
        rows, width = len(gate_up), gate_up.shape[1] // 2
        out = self.empty((rows, width), gate_up.dtype)
        fields = record(gate_up=gate_up.data_ptr(), out=out.data_ptr(), width=width)
        self.run(operation, rows, fields, row_grain(width), repeatable=True)
        return out

    def scaled_add(
        self, x: torch.Tensor, y: torch.Tensor | None, factor: float = 1.0, lasts: bool = False
    ) -> torch.Tensor:
        x, y = x.contiguous(), None if y is None else y.contiguous()
        out = self.empty(x.shape, x.dtype, lasts)
        record = ScaledAddRecord(
            x=x.data_ptr(),
            y=_address(y),
            out=out.data_ptr(),
            width=x.shape[1],
            factor=factor,
        )
        self.run(self.rows.add, len(x), record, row_grain(x.shape[1]))
        return out

    def adjust_logits(self, logits: torch.Tensor, scale: float, cap: float | None) -> torch.Tensor:
        width = logits.shape[1]
        if width < 16:
            return super().adjust_logits(logits, scale, cap)
        logits = logits.contiguous()
        out = self.empty(logits.shape, logits.dtype)
        record = AdjustLogitsRecord(
            x=logits.data_ptr(), out=out.data_ptr(), width=width, scale=scale, cap=cap or 0.0
        )
        self.run(self.rows.logits, len(logits), record, row_grain(width), repeatable=True)
        return out

    def rotate(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, index: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Changes x itself, and returns it; its heads are contiguous, its tokens may be strided."""
        tokens, heads, head_dim = x.shape
        assert x.stride()[1:] == (head_dim, 1) and cos.is_contiguous() and sin.is_contiguous()
        record = RotaryRecord(
            x=x.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            index=_address(index),
            stride=x.itemsize * x.stride(0),
            heads=heads,
            head_dim=head_dim,
            out=x.data_ptr(),
        )
        self.run(self.rows.rotary, tokens, record, row_grain(heads * head_dim))
        return x

    def full_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        lengths: Sequence[int] = (),
    ) -> torch.Tensor:
        _, num_heads, head_dim = query.shape
        plan = self.segments.find(tuple(lengths) or (len(query),), num_heads, head_dim)
        if plan is None:
            return super().full_attention(query, key, value, scale, lengths)
        return plan.attend(query, key, value, scale)

    def route(
        self, logits: torch.Tensor, correction: torch.Tensor | None, routing: Routing
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from kernels.cpu.experts.route import scratch_bytes  # compiles, the first time

        logits, shape = logits.contiguous(), (len(logits), routing.top_k)
        weights, experts = self.empty(shape, torch.float32), self.empty(shape, torch.int64)
        record = RouteRecord(
            logits=logits.data_ptr(),
            correction=_address(correction),
            weights=weights.data_ptr(),
            experts=experts.data_ptr(),
            scratch=self.team.scratch(scratch_bytes(routing.num_experts)),
            num_experts=routing.num_experts,
            top_k=routing.top_k,
            score=routing.score.value,
            groups=routing.groups,
            top_groups=routing.top_groups,
            group_best=routing.group_best,
            normalized=routing.normalized,
            least_sum=routing.least_sum,
            scale=routing.scale,
            tolerance=routing.tolerance,
        )
        self.run(self.experts.choose, len(logits), record, row_grain(routing.num_experts * routing.top_k))
        return weights, experts

    def weigh(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x, width = x.contiguous(), x.shape[1]
        out = self.empty((places.numel(), width), x.dtype)
        record = WeighRecord(
            x=x.data_ptr(),
            weights=weights.data_ptr(),
            places=places.data_ptr(),
            out=out.data_ptr(),
            width=width,
            top_k=places.shape[1],
        )
        self.run(self.experts.weigh, len(out), record, row_grain(width))
        return out

    def combine(
        self,
        y: torch.Tensor,
        weights: torch.Tensor | None,
        places: torch.Tensor,
        shared: torch.Tensor | None = None,
        gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        (tokens, top_k), width = places.shape, y.shape[1]
        weights, gate = self.constant(or_ones(weights, places)), None if gate is None else gate.contiguous()
        out = self.empty((tokens, width), y.dtype)
        record = CombineRecord(
            y=y.data_ptr(),
            weights=weights.data_ptr(),
            places=places.data_ptr(),
            shared=_address(shared),
            gate=_address(gate),
            out=out.data_ptr(),
            width=width,
            top_k=top_k,
        )
        self.run(self.experts.sum, tokens, record, row_grain(width))
        return out
