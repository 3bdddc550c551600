"""The compiled operations of a mixture of experts, for modules that do not compile them themselves."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from kernels.cpu.compiler.records import Operation, OperationRecord
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


class ExpertKernels(NamedTuple):
    """Of activations of one dtype."""

    choose: Operation[RouteRecord]  # kernels.cpu.experts.route.route
    dispatch: Operation[DispatchRecord]  # kernels.cpu.experts.dispatch.dispatch
    gather: Operation[GatherRecord]  # kernels.cpu.experts.dispatch.gather_rows
    product: Operation[GroupedRecord]  # kernels.cpu.experts.grouped_product.grouped_product
    sum: Operation[CombineRecord]  # kernels.cpu.experts.combine.combine
    weigh: Operation[WeighRecord]  # kernels.cpu.experts.weigh.weigh


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
    """Returns the operations, compiled if needed. Call only if kernels.cpu.requirements.why_not() is None.
    dtype: bfloat16 or float32."""
    from kernels.cpu.experts.combine import combine, combine_float32  # compiles, the first time
    from kernels.cpu.experts.dispatch import dispatch, gather_rows
    from kernels.cpu.experts.grouped_product import grouped_product
    from kernels.cpu.experts.route import route
    from kernels.cpu.experts.weigh import weigh, weigh_float32

    chosen = (combine_float32, weigh_float32) if dtype == torch.float32 else (combine, weigh)
    return ExpertKernels(route, dispatch, gather_rows, grouped_product, *chosen)
