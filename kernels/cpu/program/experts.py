"""Experts in a program. Which experts have tokens, and how many, is decided while it runs: an operation
sorts the pairs by expert and writes down the rows of each product; those of all experts are one operation."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kernels.batch import InputBatch
from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.experts.records import DispatchRecord, Group, GroupedRecord, Segment
from kernels.cpu.program.program import ROWS, CannotRecord, Records
from kernels.cpu.program.writer import ProgramWriter
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


_TOKENS = DispatchRecord.word("tokens")


class RecordedOrder:
    """The order of the pairs of one layer, which a program writes, and the memory of what follows it. M
    tokens at most, k experts each."""

    def __init__(self, ops: ProgramWriter, chosen: torch.Tensor, num_experts: int) -> None:
        """Puts the sorting. chosen: buffer [M, k]; num_experts, as one of them: an expert of another rank, of
        whose pairs nothing is computed."""
        self._ops, self._top_k = ops, chosen.shape[1]
        self.experts, self.num_experts = chosen, num_experts
        self.adapted: list[torch.Tensor] | None = None
        """The pairs that have an adapter, and these, as PairAdaptersRecord has them."""
        self._groups: list[ProductGroup] = []
        self._table = (Group * 2)()
        self._units = torch.zeros(2, dtype=torch.int64)
        self._starts = torch.zeros(num_experts + 1, dtype=torch.int64)
        self.places = ops.empty(chosen.shape, torch.int64)
        self.tokens = ops.empty(chosen.shape, torch.int64)
        record = DispatchRecord(
            tokens=0,
            top_k=self._top_k,
            num_experts=num_experts,
            experts=chosen.data_ptr(),
            starts=self._starts.data_ptr(),
            pair_tokens=self.tokens.data_ptr(),
            places=self.places.data_ptr(),
            groups=ctypes.addressof(self._table),
            units=self._units.data_ptr(),
        )
        self._sorts = ops.put(ops.experts.dispatch, record, 1)
        self._decided = ops.decide_rows(self._units)
        ops.on_batch(self._update)

    def _update(self, batch: InputBatch, records: Records) -> None:
        records[self._sorts, ROWS], records[self._sorts, _TOKENS] = 1, len(batch.token_ids)

    def _pairs(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns a buffer [M * k, width]."""
        return self._ops.empty((self.places.numel(), width), dtype)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Puts x of each pair's token. x: [M, E]. Returns [M * k, E]."""
        return self._ops.gather(x, self.tokens, self._top_k)

    def product(self, weights: Any, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Puts the products of all chosen experts. weights: ExpertMatrices. x: [M * k, in] by pair. Returns
        [M * k, out], and the index of the record."""
        out, number = self._pairs(weights.out_features, x.dtype), len(self._groups)
        group = self._group(weights.packed, x, out)
        self._groups.append(group)
        self._table[number] = group.fields
        at = ctypes.addressof(self._table) + number * Group.size()
        with self._decided.of(number):
            index = self._ops.put(self._ops.experts.product, GroupedRecord(group=at), 1, repeatable=True)
        return out, index

    def _group(self, packed: list[Any], x: torch.Tensor, out: torch.Tensor) -> ProductGroup:
        """Puts what makes integers of the inputs, where the weights are such. x: [M * k, in]."""
        if not packed or not all(weight.has_inputs_of(packed[0]) for weight in packed):
            raise CannotRecord("the products of all experts read integers of one kind")
        if not all(weight.is_unpadded for weight in packed):
            raise CannotRecord("buffers have no room for padding")
        first = packed[0]

        def put(operation: Operation[Any], record: OperationRecord, grain: int) -> None:
            self._ops.run(operation, len(x), record, grain)

        inputs, terms = first.prepare(x, self._pairs, put)
        products = [(weight.product, weight.record(inputs, out, terms)) for weight in packed]
        return ProductGroup(products, inputs, out, terms, first.terms_field)
