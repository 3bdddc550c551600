"""Experts in a lowered program. Which experts have tokens, and how many, is decided while it runs: an
operation sorts the pairs by expert and writes down the rows of each product; those of all experts are one
operation."""

import ctypes
from typing import Any

import torch

from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.elementwise.row_kernels import row_grain
from kernels.cpu.experts.expert_kernels import ExpertKernels, ProductGroup, combine_record
from kernels.cpu.experts.records import DispatchRecord, GatherRecord, Group, GroupedRecord, WeighRecord
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.experts.router import ExpertRouter
from worker.lowering.builder import ProgramBuilder
from worker.lowering.program import ROWS, Records
from worker.model_input import InputBatch

_TOKENS = DispatchRecord.word("tokens")


class LoweredExperts:
    """The operations of one layer, and the memory that they point at. M tokens at most, k experts each."""

    def __init__(
        self, builder: ProgramBuilder, kernels: ExpertKernels, router: ExpertRouter, x: torch.Tensor
    ) -> None:
        """Puts the choice of experts for x, [M, E]."""
        routing, buffers = router.routing, builder.buffers
        self._builder, self._kernels, self._router, self._x = builder, kernels, router, x
        self._count, self._top_k = routing.num_experts, routing.top_k
        self._groups: list[ProductGroup] = []
        self._table = (Group * 2)()
        self._per_pair: list[int] = []  # records with a row for each pair
        self._units = torch.zeros(2, dtype=torch.int64)
        self._starts = torch.zeros(self._count, dtype=torch.int64)
        self.weights = buffers.output(self._top_k, torch.float32)
        self._experts = buffers.output(self._top_k, torch.int64)
        self._places = buffers.output(self._top_k, torch.int64)
        self._pair_tokens = buffers.output(self._top_k, torch.int64)
        logits = router.lower_logits(builder, x)
        record = kernels.route_record(logits, router.correction, routing, self.weights, self._experts)
        builder.put(kernels.choose, record, row_grain(self._count * self._top_k))
        self._sorts = builder.put(kernels.dispatch, self._dispatch_record(), 1)
        self._decided = builder.decide_rows(self._units)
        builder.on_batch(self._update)

    def _dispatch_record(self) -> DispatchRecord:
        return DispatchRecord(
            tokens=0,
            top_k=self._top_k,
            num_experts=self._count,
            experts=self._experts.data_ptr(),
            starts=self._starts.data_ptr(),
            pair_tokens=self._pair_tokens.data_ptr(),
            places=self._places.data_ptr(),
            groups=ctypes.addressof(self._table),
            units=self._units.data_ptr(),
        )

    def _update(self, batch: InputBatch, records: Records) -> None:
        tokens = len(batch.token_ids)
        records[self._sorts, ROWS], records[self._sorts, _TOKENS] = 1, tokens
        records[self._per_pair, ROWS] = self._top_k * tokens

    def pairs(self, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns a buffer [M * k, width]."""
        return self._builder.buffers.output(self._top_k * width, dtype).view(-1, width)

    def add_per_pair(self, index: int) -> None:
        """index: of a record that has a row for each pair, and not for each token."""
        self._per_pair.append(index)

    def gather(self) -> torch.Tensor:
        """Puts x of each pair's token. Returns [M * k, E]."""
        out, width = self.pairs(self._x.shape[1]), self._x.shape[1]
        record = GatherRecord(
            x=self._x.data_ptr(),
            indexes=self._pair_tokens.data_ptr(),
            out=out.data_ptr(),
            row_bytes=out.itemsize * width,
        )
        self.add_per_pair(self._builder.put(self._kernels.gather, record, row_grain(width)))
        return out

    def weigh(self) -> torch.Tensor:
        """Puts x of each pair's token times the pair's weight; combine() then sums without weights. Returns
        [M * k, E]."""
        out, width = self.pairs(self._x.shape[1]), self._x.shape[1]
        record = WeighRecord(
            x=self._x.data_ptr(),
            weights=self.weights.data_ptr(),
            places=self._places.data_ptr(),
            out=out.data_ptr(),
            width=width,
            top_k=self._top_k,
        )
        self.add_per_pair(self._builder.put(self._kernels.weigh, record, row_grain(width)))
        self.weights = torch.ones_like(self.weights)
        return out

    def product(self, matrices: ExpertMatrices, x: torch.Tensor) -> torch.Tensor:
        """Puts the products of all chosen experts. x: [M * k, in] by pair. Returns [M * k, out]."""
        out, number = self.pairs(matrices.out_features), len(self._groups)
        group = self._group(matrices, x, out)
        self._groups.append(group)
        self._table[number] = group.fields
        at = ctypes.addressof(self._table) + number * Group.size()
        with self._decided.of(number):
            self._builder.put(self._kernels.product, GroupedRecord(group=at), 1, repeatable=True)
        return out

    def _group(self, matrices: ExpertMatrices, x: torch.Tensor, out: torch.Tensor) -> ProductGroup:
        """Puts what makes integers of the inputs, where the weights are such. x: [M * k, in]."""
        first = matrices.packed[0]

        def put(operation: Operation[Any], record: OperationRecord, grain: int) -> None:
            self.add_per_pair(self._builder.put(operation, record, grain))

        inputs, terms = first.prepare(x, self.pairs, put)
        products = [(packed.product, packed.record(inputs, out, terms)) for packed in matrices.packed]
        return ProductGroup(products, inputs, out, terms, first.terms_field)

    def combine(
        self, y: torch.Tensor, shared: torch.Tensor | None, gate: torch.Tensor | None
    ) -> torch.Tensor:
        """Puts the weighted sums. y: [M * k, E] by pair; shared: [M, E]; gate: [M, 1] float32. Returns
        [M, E]."""
        out = self._builder.buffers.output(y.shape[1])
        record = combine_record(y, self.weights, self._places, shared, gate, out)
        self._builder.put(self._kernels.sum, record, row_grain(y.shape[1]))
        return out
