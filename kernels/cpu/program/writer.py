"""Puts records into a program in the making."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kernels.batch import InputBatch
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.elementwise.records import GatherRecord, NormRecord
from kernels.cpu.program.buffers import FEW, ActivationBuffers
from kernels.cpu.program.program import (
    ROWS,
    CannotRecord,
    Computed,
    Fixed,
    Records,
    StepProgram,
    Update,
)
from kernels.cpu.runtime.grain import row_grain
from kernels.cpu.runtime.records import DecideRowsRecord, ProductRecord, ProgramRecord
from kernels.cpu_ops import CpuOps
from kernels.ops.states.spans import Spans
from kernels.torch_ops import HeadNorm

if TYPE_CHECKING:  # it compiles when it is imported
    from kernels.cpu.runtime.thread_pool import Program


def check_unpadded(weight: Any) -> None:
    """Raises CannotRecord where a PackedMatrix reads more than its inputs."""
    if not weight.is_unpadded:
        raise CannotRecord("buffers have no room for padding")


class DecidedRows:
    """The record that reads the row counts of others, and which those are."""

    def __init__(self, index: int, record: DecideRowsRecord, counts: torch.Tensor) -> None:
        """index, record: of kernels.cpu.experts.dispatch. counts: [N] int64, which the program writes."""
        self.record, self._index, self._counts = record, index, counts
        self._targets: list[tuple[int, int]] = []  # index of a record, and of its count
        self._open: int | None = None

    @contextmanager
    def of(self, number: int) -> Iterator[None]:
        """What is put within has as many rows as counts[number] says when the program is there."""
        self._open = number
        yield
        self._open = None

    def add(self, index: int) -> None:
        """Notes a record that was just put."""
        if self._open is not None:
            self._targets.append((index, self._open))

    def link(self, program: "Program") -> None:
        """Writes down where the records are."""
        from kernels.cpu.experts.dispatch import row_targets  # compiles, the first time

        first = self._counts.data_ptr()
        self._pairs = row_targets(
            [
                (ProgramRecord.at(program.address, 1 + index).address, first + 8 * number)
                for index, number in self._targets
            ]
        )
        self.record.targets = self._pairs.ctypes.data

    def update(self, batch: InputBatch, records: Records) -> None:
        records[self._index, ROWS] = len(self._targets)


@dataclass(frozen=True)
class _Entry:
    operation: Operation[Any]
    record: OperationRecord
    grain: int
    repeatable: bool
    factor: int  # rows for each token of the step


class ProgramWriter(CpuOps):
    """CpuOps that write a program, for steps of at most `most_tokens`, M: what is run is put into it."""

    FEW = FEW  # see kernels.cpu.program.buffers

    def __init__(self, ops: CpuOps, blocks: BlockKernels, most_tokens: int) -> None:
        super().__init__(ops.dtype, ops.team)
        self.blocks, self.most_tokens = blocks, most_tokens
        self.buffers = ActivationBuffers(most_tokens)
        self.computed = Computed()
        self._entries: list[_Entry] = []
        self._layer_sizes: list[int] = []
        self._decided: list[DecidedRows] = []
        self._spans: list[tuple[int, int, int]] = []  # index, word of the spans, rows for each span
        self._on_batch: list[Update] = [self._update_spans]
        self._on_run: list[tuple[Update, Fixed]] = []
        self._constants: list[torch.Tensor] = []
        self.products: list[int] = []
        """Indexes of the records of products, but for those of experts."""
        self.halves: list[tuple[int, int]] = []  # of each product's weight, as it has them

    @property
    def next_index(self) -> int:
        """The index of the record that is put next."""
        return len(self._entries)

    def put(
        self,
        operation: Operation[Any],
        record: OperationRecord,
        grain: int,
        factor: int = 1,
        repeatable: bool = False,
    ) -> int:
        """Appends an operation, which computes `factor` rows per token of the step. Returns the record's
        index.

        grain: the fewest rows that a thread takes; 0 for a product. repeatable: it writes to nothing that it
        reads, and its output is a buffer of this layer, so that two threads may compute the same rows. A KV
        cache is no such buffer: what a late thread computes from inputs that have changed would stay there.
        """
        index = self.next_index
        self._entries.append(_Entry(operation, record, grain, repeatable, factor))
        for decided in self._decided:
            decided.add(index)
        return index

    def put_product(self, operation: Operation[Any], record: ProductRecord, weight: Any) -> None:
        """Appends a product by a PackedMatrix."""
        self.products.append(self.put(operation, record, 0, repeatable=True))
        self.halves.append(weight.halves)

    def run(
        self,
        operation: Operation[Any],
        rows: int,
        record: OperationRecord,
        grain: int,
        repeatable: bool = False,
    ) -> None:
        self.put(operation, record, grain, rows // self.most_tokens, repeatable)

    def run_on_spans(self, operation: Operation[Any], record: Any, spans: object, parts: int) -> None:
        self._spans.append((self.put(operation, record, 1), type(record).word("spans"), parts))

    def _update_spans(self, batch: InputBatch, records: Records) -> None:
        for index, word, parts in self._spans:
            assert isinstance(batch.spans, Spans)
            records[index, ROWS] = len(batch.spans) * parts
            records[index, word] = batch.spans.columns.ctypes.data

    def empty(self, shape: Sequence[int], dtype: torch.dtype, lasts: bool = False) -> torch.Tensor:
        return self.buffers.lasting(shape, dtype) if lasts else self.buffers.output(shape, dtype)

    def sum_of(self, residual: torch.Tensor) -> torch.Tensor:
        return residual

    def constant(self, value: torch.Tensor) -> torch.Tensor:
        self._constants.append(value)
        return value

    def layer(self) -> AbstractContextManager[None]:
        return self._layer()

    @contextmanager
    def _layer(self) -> Iterator[None]:
        self.buffers.begin_layer()
        first = self.next_index
        yield
        self._layer_sizes.append(self.next_index - first)

    def decide_rows(self, counts: torch.Tensor) -> DecidedRows:
        """Puts an operation that reads the row counts of later ones. counts: [N] int64, which an operation
        before writes; see DecidedRows.of()."""
        from kernels.cpu.experts.dispatch import decide_rows  # compiles, the first time

        record = DecideRowsRecord(targets=0)
        decided = DecidedRows(self.put(decide_rows, record, 1), record, counts)
        self._decided.append(decided)
        self.on_batch(decided.update)
        return decided

    def on_batch(self, update: Update) -> None:
        """Calls update before a run whose batch is another object than the last one, after the rows of all
        records have been set to those of the number of tokens."""
        self._on_batch.append(update)

    def on_run(self, update: Update, is_fixed: Fixed = lambda batch: False) -> None:
        """Calls update before each run. is_fixed: whether it would change nothing before another run of the
        batch that it was called with last, after numbers in its tensors have changed."""
        self._on_run.append((update, is_fixed))

    def norm_heads(self, norm: HeadNorm, x: torch.Tensor, out: torch.Tensor) -> None:
        """Puts a norm of heads. x, out: [M, N, D], views of buffers with equal strides between tokens."""
        _, heads, head_dim = x.shape
        width = norm.weight.shape[0]
        if heads * head_dim % width:
            raise CannotRecord("a norm reads the heads of other ranks, too")
        assert x.stride(0) == out.stride(0)
        record = NormRecord(
            x=x.data_ptr(),
            weight=norm.weight.data_ptr(),
            normed=out.data_ptr(),
            total=x.data_ptr(),
            width=width,
            eps=norm.eps,
            weight_offset=norm.offset,
            factor=1.0,
            heads=heads * head_dim // width,
            stride=x.itemsize * x.stride(0),
        )
        self.put(self.rows.norm, record, row_grain(heads * head_dim))

    def gather(self, x: torch.Tensor, indexes: torch.Tensor, factor: int = 1) -> torch.Tensor:
        """Puts x[indexes]. x: [M, E]; indexes: int64, N in all; factor: of them for each token of the step.
        Returns [N, E]."""
        out, width = self.empty((indexes.numel(), x.shape[1]), x.dtype), x.shape[1]
        record = GatherRecord(
            x=x.data_ptr(),
            indexes=indexes.data_ptr(),
            out=out.data_ptr(),
            row_bytes=out.itemsize * width,
        )
        self.put(self.rows.gather, record, row_grain(width), factor)
        return out

    def build(self, hidden: torch.Tensor) -> StepProgram:
        """Returns the program of everything that was put. hidden: [M, E], what it computes."""
        from kernels.cpu.runtime.thread_pool import Program  # compiles, the first time

        waits = self.most_tokens > FEW
        recovers = self.team.recovers_stragglers and not waits
        slack = self.buffers.num_sets * min(self._layer_sizes, default=0) if recovers else 0
        program = Program(len(self._entries), slack)
        for decided in self._decided:
            decided.link(program)
        for index, entry in enumerate(self._entries):
            program.put(index, entry.operation, 0, entry.record, entry.grain, entry.repeatable)
        factors = np.array([entry.factor for entry in self._entries], np.int64)
        updates = self._on_batch, self._on_run
        return StepProgram(program, factors, self.team, hidden, self.computed, *updates, memory=self)
