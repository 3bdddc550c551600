"""The end of a program for steps of few tokens: logits, and the choice of rows that take the largest of them
and need nothing else.

    logits   [T, E] -> [T, V] float32     where all tokens are sampled from
    choice   [T, V] -> [T] int64          where all rows are greedy besides

    token[a] = the first i with x[a, i] = max x[a]; -1 where that is not finite

This is kernels.ops.sampling.argmax, whose reference is that of this too. A row is read once, in pieces that
threads share (kernels.cpu.sampling.argmax): the first record finds the largest of each piece, the second
takes the first of these. As part of a step's program it finds the logits in caches and the threads awake;
kernels.cpu.sampling.choose, which draws as well, is a call of its own, with other threads.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.batch import InputBatch
from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.program.program import ROWS, Records
from kernels.cpu.program.writer import ProgramWriter
from kernels.cpu.runtime.arena import zeros
from kernels.cpu.sampling.records import FindRecord, MergeRecord

RECORDS = 2
_LOGIT_ROWS = FindRecord.word("logit_rows")
_MERGED_TOGETHER = 32
"""Rows: merging one takes some ten nanoseconds."""


class GreedyChoice:
    """Two records, one after the other, and what they write."""

    def __init__(self, logits: torch.Tensor) -> None:
        """logits: [M, V] float32, contiguous, where they will be."""
        from kernels.cpu.sampling import argmax  # compiles, the first time

        assert logits.is_contiguous() and logits.dtype == torch.float32
        most, vocab_size = logits.shape
        self._find, self._merge = argmax.find_in_pieces, argmax.merge_pieces
        self._logits, self._pieces = logits, -(-vocab_size // argmax.PIECE)
        self._found = zeros((most * self._pieces, 2), torch.int64)
        self.tokens = zeros((most,), torch.int64)  # of the first rows, after a run

    def operations(self) -> Iterator[tuple[Operation[Any], OperationRecord, int]]:
        """The two operations, their records, and the fewest rows that a thread takes of each."""
        found, (_, vocab_size) = self._found.data_ptr(), self._logits.shape
        yield self._find, FindRecord(logits=self._logits.data_ptr(), vocab_size=vocab_size, found=found), 1
        merge = MergeRecord(found=found, pieces=self._pieces, tokens=self.tokens.data_ptr())
        yield self._merge, merge, _MERGED_TOGETHER

    def set_rows(self, records: npt.NDArray[np.int64], rows: int) -> None:
        """records: the two. rows: the first ones, that are chosen for from now on."""
        records[0, ROWS], records[0, _LOGIT_ROWS] = rows * self._pieces, rows
        records[1, ROWS] = rows


def put_head(ops: ProgramWriter, logits: torch.Tensor, first: int) -> None:
    """Puts the choice, and has each batch compute what it needs of both: `ops.computed` says what that is.
    logits: [M, V] float32, which the records from number `first` on compute."""
    choice, product = GreedyChoice(logits), slice(first, ops.next_index)
    for operation, record, grain in choice.operations():
        ops.put(operation, record, grain, repeatable=True)
    chosen = slice(product.stop, ops.next_index)

    def update(batch: InputBatch, records: Records) -> None:
        computed = len(batch.token_ids) if batch.wants_all_logits else 0
        greedy = computed if batch.greedy else 0
        ops.computed.logits = logits[:computed] if computed else None
        ops.computed.tokens = choice.tokens[:greedy] if greedy else None
        records[product, ROWS] = computed
        choice.set_rows(records[chosen], greedy)

    ops.on_batch(update)
