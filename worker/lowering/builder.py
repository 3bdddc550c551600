"""Builds one program out of what layers write down in their lower().

A layer's forward() computes with torch or with single calls of the compiled kernels, some ten per block,
which cost more than a small model's arithmetic. Its lower() puts the same operations, in the same order, into
a program (kernels.cpu.runtime.program), and returns the buffers that its outputs will be in. So one call
computes a whole step, with the same bits as forward().
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.planning.kv_prefetch import KVPrefetch
from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.elementwise.row_kernels import RowKernels
from kernels.cpu.matmul.matrix import PackedMatrix
from kernels.cpu.runtime.records import DecideRowsRecord, ProductRecord
from worker.attention.kv_cache_spec import KVCacheSpec
from worker.attention.plan import LayerCache
from worker.lowering.attention import AttentionRecords
from worker.lowering.buffers import FEW, ActivationBuffers
from worker.lowering.decided_rows import DecidedRows
from worker.lowering.program import Fixed, LoweredProgram, Records, Update
from worker.model_input import InputBatch

_COLUMNS, _WORDS = ProductRecord.word("columns"), ProductRecord.word("words")
_FOLLOWING, STREAM = ProductRecord.word("following"), ProductRecord.word("stream")


@dataclass(frozen=True)
class _Entry:
    operation: Operation[Any]
    record: OperationRecord
    grain: int
    repeatable: bool


class ProgramBuilder:
    """A program in the making, for steps of at most `most_tokens`."""

    def __init__(self, rows: RowKernels, blocks: BlockKernels, most_tokens: int) -> None:
        self.rows, self.blocks, self.most_tokens = rows, blocks, most_tokens
        self.buffers = ActivationBuffers(most_tokens, rows.dtype)
        self._entries: list[_Entry] = []
        self._layer_sizes: list[int] = []
        self._attention: dict[KVCacheSpec, AttentionRecords] = {}
        self._products: list[int] = []
        self._halves: list[tuple[int, int]] = []  # of each product's weight, as it has them
        self._decided: list[DecidedRows] = []
        self._on_batch: list[Update] = []
        self._on_run: list[tuple[Update, Fixed]] = []

    @property
    def next_index(self) -> int:
        """The index of the record that is put next."""
        return len(self._entries)

    def put(
        self, operation: Operation[Any], record: OperationRecord, grain: int, repeatable: bool = False
    ) -> int:
        """Appends an operation, which computes one row per token of the step. Returns the record's index.

        grain: the fewest rows that a thread takes; 0 for a product. repeatable: it writes to nothing that it
        reads, and its output is a buffer of this layer, so that two threads may compute the same rows. A KV
        cache is no such buffer: what a late thread computes from inputs that have changed would stay there.
        """
        self._entries.append(_Entry(operation, record, grain, repeatable))
        index = len(self._entries) - 1
        for decided in self._decided:
            decided.add(index)
        return index

    def decide_rows(self, counts: torch.Tensor) -> DecidedRows:
        """Puts an operation that reads the row counts of later ones. counts: [N] int64, which an operation
        before writes; see DecidedRows.of()."""
        from kernels.cpu.runtime.decide_rows import decide_rows  # compiles, the first time

        record = DecideRowsRecord(targets=0)
        decided = DecidedRows(self.put(decide_rows, record, 1), record, counts)
        self._decided.append(decided)
        self.on_batch(decided.update)
        return decided

    def on_batch(self, update: Update) -> None:
        """Calls update before a run whose batch is another object than the last one, after the rows of all
        records have been set to the number of tokens."""
        self._on_batch.append(update)

    def on_run(self, update: Update, is_fixed: Fixed = lambda batch: False) -> None:
        """Calls update before each run. is_fixed: whether it would change nothing before another run of the
        batch that it was called with last, after numbers in its tensors have changed."""
        self._on_run.append((update, is_fixed))

    @contextmanager
    def layer(self) -> Iterator[None]:
        """What is put within belongs to one layer of the model."""
        self.buffers.begin_layer()
        first = self.next_index
        yield
        self._layer_sizes.append(self.next_index - first)

    def product(self, weight: PackedMatrix, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Puts out = x @ weight.T + bias. x: [M, in], out: [M, out] of x's dtype or float32. Returns out."""
        inputs, terms = weight.prepare(x, self.buffers.output, self.put)
        record = weight.record(inputs, out, terms)
        self._products.append(self.put(weight.product, record, 0, repeatable=True))
        self._halves.append(weight.halves)
        return out

    def host_input(
        self, name: str, width: int, compute: Callable[[InputBatch], torch.Tensor]
    ) -> torch.Tensor:
        """Returns [M, width] whose first T rows are what compute(batch) returns before each run."""
        out = self.buffers.shared(name, width)

        def update(batch: InputBatch, records: Records) -> None:
            out[: len(batch.token_ids)] = compute(batch)

        self.on_run(update)
        return out

    def attention(self, spec: KVCacheSpec) -> AttentionRecords:
        """Returns the attention records of the layers of this kind."""
        if spec not in self._attention:
            self._attention[spec] = AttentionRecords(spec)
            self.on_batch(self._attention[spec].update)
        return self._attention[spec]

    def prefetch(self, specs: Iterable[KVCacheSpec], cache: LayerCache, batch: InputBatch) -> None:
        """Has products prefetch the keys and values of the attention behind them. Call before anything is
        put. cache: of any layer; latents are few bytes, and nothing is done for them. batch: of any step."""
        if len(cache) < 2:
            return
        for spec in dict.fromkeys(specs):
            records, prefetch = self.attention(spec), KVPrefetch()
            record = prefetch.record(records.plan_of(batch).plan, (cache[0], cache[1]))
            records.add_prefetch(self.put(prefetch.operation, record, 1), prefetch)

    def build(self, hidden: torch.Tensor) -> LoweredProgram:
        """Returns the program of everything that was put. hidden: [M, E], what it computes."""
        from kernels.cpu.runtime.thread_pool import Program  # compiles, the first time

        waits = self.most_tokens > FEW
        recovers = self.rows.team.recovers_stragglers and not waits
        slack = self.buffers.num_sets * min(self._layer_sizes) if recovers else 0
        program = Program(len(self._entries), slack)
        for decided in self._decided:
            decided.link(program)
        for index, entry in enumerate(self._entries):
            program.put(index, entry.operation, 0, entry.record, entry.grain, entry.repeatable)
        self._link_products(program.records)
        self._add_streams(program.records)
        return LoweredProgram(program, self.rows.team, hidden, self._on_batch, self._on_run, memory=self)

    def _link_products(self, records: Records) -> None:
        """Tells each product which weight follows its own."""
        self._halves_array = np.array(self._halves, np.int64)
        for number, product in enumerate(self._products[:-1]):
            records[product, _FOLLOWING] = self._halves_array[number + 1].ctypes.data

    def _add_streams(self, records: Records) -> None:
        """Has the products between one attention and the next prefetch for the latter."""
        layers = [(at, keys, kind) for kind in self._attention.values() for at, keys in kind.layers()]
        before = 0
        for attention, keys, kind in sorted(layers, key=lambda layer: layer[0]):
            products = [product for product in self._products if before < product < attention]
            before = attention
            if kind.prefetch is not None and products:
                sizes = records[products][:, [_COLUMNS, _WORDS]].tolist()
                records[products, STREAM] = kind.prefetch.streams(keys, sizes)
