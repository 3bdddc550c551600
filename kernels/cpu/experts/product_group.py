"""The memory of the products of a mixture of experts."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.experts.records import Group, Segment
from kernels.cpu.runtime.records import FIELDS_BYTES


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
