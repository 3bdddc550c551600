"""The operations of a mixture of experts: single calls, and the records of a program."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.elementwise.row_kernels import row_grain
from kernels.cpu.experts.records import (
    CombineRecord,
    DispatchRecord,
    GatherRecord,
    Group,
    GroupedRecord,
    RouteRecord,
    Segment,
    WeighRecord,
)
from kernels.cpu.runtime.records import FIELDS_BYTES
from kernels.ops.experts.routing import Routing

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Team


@dataclass(frozen=True)
class ExpertKernels:
    """The compiled operations, for activations of one dtype."""

    team: "Team"
    choose: Operation[RouteRecord]  # kernels.cpu.experts.route.route
    dispatch: Operation[DispatchRecord]  # kernels.cpu.experts.dispatch.dispatch
    gather: Operation[GatherRecord]  # kernels.cpu.experts.dispatch.gather_rows
    product: Operation[GroupedRecord]  # kernels.cpu.experts.grouped_product.grouped_product
    sum: Operation[CombineRecord]  # kernels.cpu.experts.combine.combine
    weigh: Operation[WeighRecord]  # kernels.cpu.experts.weigh.weigh

    def route(
        self, logits: torch.Tensor, correction: torch.Tensor | None, routing: Routing
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits, tokens = logits.contiguous(), len(logits)
        weights = torch.empty((tokens, routing.top_k))
        experts = torch.empty((tokens, routing.top_k), dtype=torch.int64)
        record = self.route_record(logits, correction, routing, weights, experts)
        self.team.run_one(self.choose, tokens, record, row_grain(routing.num_experts * routing.top_k))
        return weights, experts

    def route_record(
        self,
        logits: torch.Tensor,
        correction: torch.Tensor | None,
        routing: Routing,
        weights: torch.Tensor,
        experts: torch.Tensor,
    ) -> RouteRecord:
        """logits: [T, N] float32; correction: [N] float32; weights, experts: [T, k] float32 and int64, of the
        result."""
        from kernels.cpu.experts.route import scratch_bytes

        return RouteRecord(
            logits=logits.data_ptr(),
            correction=0 if correction is None else correction.data_ptr(),
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

    def combine(
        self,
        y: torch.Tensor,
        weights: torch.Tensor,
        places: torch.Tensor,
        shared: torch.Tensor | None = None,
        gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        out = y.new_empty((len(places), y.shape[1]))
        gate = gate if gate is None else gate.contiguous()
        record = combine_record(y, weights, places, shared, gate, out)
        self.team.run_one(self.sum, len(places), record, row_grain(y.shape[1]))
        return out


def combine_record(
    y: torch.Tensor,
    weights: torch.Tensor,
    places: torch.Tensor,
    shared: torch.Tensor | None,
    gate: torch.Tensor | None,
    out: torch.Tensor,
) -> CombineRecord:
    """Tensors of kernels.ops.experts.combine, contiguous, and that of the result."""
    return CombineRecord(
        y=y.data_ptr(),
        weights=weights.data_ptr(),
        places=places.data_ptr(),
        shared=0 if shared is None else shared.data_ptr(),
        gate=0 if gate is None else gate.data_ptr(),
        out=out.data_ptr(),
        width=y.shape[1],
        top_k=weights.shape[1],
    )


class ProductGroup:
    """The memory of a Group: products of N experts that share a buffer of inputs and one of outputs."""

    def __init__(
        self,
        products: Sequence[tuple[Operation[Any], OperationRecord]],
        x: torch.Tensor,
        out: torch.Tensor,
        scales: torch.Tensor | None = None,
        scale_field: int = 0,
    ) -> None:
        """products: of each expert, with any rows. x [P, ...], out [P, columns], scales [P, ...]: contiguous;
        scale_field: see Group."""
        self._products = np.zeros((len(products), FIELDS_BYTES // 8), np.int64)
        self._segments = np.zeros((len(products) + 1, Segment.size() // 8), np.int64)
        for row, (operation, record) in zip(self._products, products, strict=True):
            record.operation = operation
            ctypes.memmove(row.ctypes.data, record.address, ctypes.sizeof(record))
        self.fields = Group(
            products=self._products.ctypes.data,
            segments=self._segments.ctypes.data,
            x=x.data_ptr(),
            x_bytes=_row_bytes(x),
            out=out.data_ptr(),
            scales=0 if scales is None else scales.data_ptr(),
            scale_bytes=0 if scales is None else _row_bytes(scales),
            scale_field=scale_field,
        )


def _row_bytes(rows: torch.Tensor) -> int:
    return rows.stride(0) * rows.itemsize


def expert_kernels(dtype: torch.dtype) -> ExpertKernels:
    """Returns the kernels, compiled if needed. Call only if kernels.cpu.requirements.why_not() is None.
    dtype: bfloat16 or float32."""
    from kernels.cpu.experts.combine import combine, combine_float32  # compiles, the first time
    from kernels.cpu.experts.dispatch import dispatch, gather_rows
    from kernels.cpu.experts.grouped_product import grouped_product
    from kernels.cpu.experts.route import route
    from kernels.cpu.experts.weigh import weigh, weigh_float32
    from kernels.cpu.runtime.thread_pool import TEAM

    chosen = (combine_float32, weigh_float32) if dtype == torch.float32 else (combine, weigh)
    return ExpertKernels(TEAM, route, dispatch, gather_rows, grouped_product, *chosen)
