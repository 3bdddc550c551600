"""Greedy choice as records of a program: the ids of the largest logits, right after they have been computed.

    token[a] = the first i with x[a, i] = max x[a]; -1 where that is not finite

logits [M, V] float32 -> [M] int64: kernels.ops.sampling.argmax, whose reference is that of this too. A row
is read once, in pieces that threads share (kernels.cpu.sampling.argmax): the first record finds the largest
of each piece, the second takes the first of these. As part of a step's program it finds the logits in caches
and the threads awake; kernels.cpu.sampling.choose, which draws as well, is a call of its own, with other
threads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.runtime.arena import zeros
from kernels.cpu.sampling.records import FindRecord, MergeRecord

RECORDS = 2
_ROWS, _LOGIT_ROWS = FindRecord.word("rows"), FindRecord.word("logit_rows")
_MERGED_TOGETHER = 32
"""Rows: merging one takes some ten nanoseconds."""


@dataclass(frozen=True)
class GreedyKernels:
    """The compiled operations."""

    find: Operation[FindRecord]  # kernels.cpu.sampling.argmax.find_in_pieces
    merge: Operation[MergeRecord]  # kernels.cpu.sampling.argmax.merge_pieces
    piece: int  # logits in one


class GreedyChoice:
    """Two records, one after the other, and what they write."""

    def __init__(self, kernels: GreedyKernels, logits: torch.Tensor) -> None:
        """logits: [M, V] float32, contiguous, where they will be."""
        assert logits.is_contiguous() and logits.dtype == torch.float32
        most, vocab_size = logits.shape
        self._kernels, self._logits = kernels, logits
        self._pieces = -(-vocab_size // kernels.piece)
        self._found = zeros((most * self._pieces, 2), torch.int64)
        self.tokens = zeros((most,), torch.int64)  # of the first rows, after a run

    def operations(self) -> Iterator[tuple[Operation[Any], OperationRecord, int]]:
        """The two operations, their records, and the fewest rows that a thread takes of each."""
        kernels, found = self._kernels, self._found.data_ptr()
        logits, vocab_size = self._logits.data_ptr(), self._logits.shape[1]
        yield kernels.find, FindRecord(logits=logits, vocab_size=vocab_size, found=found), 1
        merge = MergeRecord(found=found, pieces=self._pieces, tokens=self.tokens.data_ptr())
        yield kernels.merge, merge, _MERGED_TOGETHER

    def set_rows(self, records: npt.NDArray[np.int64], rows: int) -> None:
        """records: the two. rows: the first ones, that are chosen for from now on."""
        records[0, _ROWS], records[0, _LOGIT_ROWS] = rows * self._pieces, rows
        records[1, _ROWS] = rows


def greedy_kernels() -> GreedyKernels:
    """Call where kernels.cpu.requirements.why_not() is None."""
    from kernels.cpu.sampling.argmax import PIECE, find_in_pieces, merge_pieces  # compiles, the first time

    return GreedyKernels(find_in_pieces, merge_pieces, PIECE)
