"""Sampling on a CPU in compiled functions, whose rows threads share: the operations of kernels.ops, as fast.

Unlike the kernels of a model they run on any CPU, and whatever the model computes in: logits are float32,
contiguous. All that they need is llvmlite. A call does little besides calling: after a model has read its
weights, no cache holds what Python and torch need, and all they do takes ten times as long as when it is
repeated.

Milliseconds of one core for 32 rows of 152,000 logits that fall like a power of the rank, and by torch:
greedy 1.1 (5.4), a temperature 4.1 (18.6), with top_p 0.9 6.3 (57), with top_k 50 1.5 (16.3); penalties of
histories of 200 0.04 (0.65), of 4,096 1.4 (24); masks in a string, of which 98 % of the tokens are allowed,
1.2 (8.9), where hardly a token fits 1.3 (8.9), where every other one does 2.6 (30). Of logits that are all
about the same, top_p 0.9 takes 8.5.
"""

from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TypeVar

import torch

from kernels.cpu.compiler.records import Record
from kernels.cpu.runtime.arena import zeros
from kernels.cpu.sampling.records import UNKNOWN, BitmaskRecord, ChooseRecord, PenaltiesRecord
from kernels.ops.sampling.columns import SamplingColumns
from kernels.ops.sampling.logits_processors import Bitmask, PenaltyHistory
from kernels.sampling_ops import SamplingOps

AnyRecord = TypeVar("AnyRecord", bound=Record)

RowKernel = Callable[[AnyRecord, int, int, int], None]
"""Of a record, the first row, the number of rows, and the address of a thread's scratch."""

WORTH_IT = 1 << 18
"""Values: a thread takes some 50 us to wake up, in which another one reads that many."""


class RowThreads:
    """The calling thread and some more, which share the rows of a compiled function that does not hold the
    interpreter's lock. Each row is computed by one thread, as if it were alone."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._helpers = ThreadPoolExecutor(max(1, count - 1), "rows")

    def run(
        self, kernel: RowKernel[AnyRecord], record: AnyRecord, rows: int, values: int, scratches: list[int]
    ) -> None:
        """kernel(record, row, 1, scratch) for each row. values: of all rows; few are left to one thread.
        scratches: an address for each thread.

        A thread takes the next row when it is free: rows differ in what they cost.
        """
        if self.count == 1 or rows == 1 or values < WORTH_IT:
            kernel(record, 0, rows, scratches[0])
            return
        left = iter(range(rows))

        def take(scratch: int) -> None:
            for row in left:  # a step of an iterator is not interrupted by another thread
                kernel(record, row, 1, scratch)

        helping = [self._helpers.submit(take, scratch) for scratch in scratches[1 : self.count]]
        take(scratches[0])
        for helper in helping:
            helper.result()


LINE = 64  # bytes of a cache line


class _Scratch:
    """Memory of each thread, zeros whose pages are taken when they are first written; and a record."""

    def __init__(self, threads: int, size: int) -> None:
        self._memory = zeros((threads, size), torch.uint8)
        self.addresses = [line.data_ptr() for line in self._memory]
        self.record = ChooseRecord()


class SamplingKernels(SamplingOps):
    """The compiled functions, with threads and the scratch memory of each."""

    copies_logits = False

    def __init__(self, threads: int) -> None:
        from kernels.cpu.sampling import choose, logits_processors, scratch  # compiles, the first time

        self._threads = RowThreads(threads)
        self._choose, self._mask = choose.choose_rows, logits_processors.mask_rows
        self._penalize = logits_processors.penalize_rows
        self._scratch_bytes = scratch.scratch_bytes
        self._scratch: dict[int, _Scratch] = {}  # by the size of the vocabulary
        self._seen: dict[int, _Scratch] = {}  # the same: a byte per token in a row's history; 0 between rows

    def choose_tokens(
        self, logits: torch.Tensor, rows: Sequence[int], columns: SamplingColumns
    ) -> torch.Tensor:
        tokens = self.known_tokens(logits, rows, columns)
        if UNKNOWN in tokens:
            for index in (index for index, token in enumerate(tokens) if token == UNKNOWN):
                tokens[index] = int(
                    super().choose_tokens(logits[index : index + 1], [rows[index]], columns)[0]
                )
        return torch.frombuffer(tokens, dtype=torch.int64) if tokens else torch.empty(0, dtype=torch.int64)

    def known_tokens(
        self, logits: torch.Tensor, rows: Sequence[int], columns: SamplingColumns
    ) -> "array[int]":
        """Returns tokens as choose_tokens() does, but UNKNOWN for those that torch is to choose: sums are
        taken in vectors, in another order, and the last bits of one could matter; or the row has a typical_p.
        exp() may differ in the last bit."""
        count, vocab_size = _shape(logits)
        assert count == len(rows)
        if vocab_size not in self._scratch:
            size = -(-self._scratch_bytes(vocab_size) // LINE) * LINE
            self._scratch[vocab_size] = _Scratch(self._threads.count, size)
        tokens, scratch = array("q", rows), self._scratch[vocab_size]
        record = scratch.record
        record.logits, record.tokens, record.vocab_size = logits.data_ptr(), _address(tokens), vocab_size
        record.columns, record.num_rows = columns.address, columns.num_rows
        self._threads.run(self._choose, record, count, count * vocab_size, scratch.addresses)
        return tokens

    def penalize(
        self, logits: torch.Tensor, users: Sequence[int], histories: Sequence[PenaltyHistory]
    ) -> None:
        """Penalizes each token of a history once, however often it is there."""
        _, vocab_size = _shape(logits)
        lengths = [len(history.tokens) for history in histories]
        lines = array("q", (*users, *lengths, *(history.tokens.buffer_info()[0] for history in histories)))
        for of_each in zip(*(history.addresses for history in histories), strict=True):
            lines.extend(of_each)
        at, line = _address(lines), 8 * len(users)
        record = PenaltiesRecord(
            logits=logits.data_ptr(),
            vocab_size=vocab_size,
            batch_index=at,
            lengths=at + line,
            histories=at + 2 * line,
            counts=at + 3 * line,
            strengths=at + 4 * line,
        )
        if vocab_size not in self._seen:
            self._seen[vocab_size] = _Scratch(self._threads.count, vocab_size)
        seen = self._seen[vocab_size].addresses
        # A token costs some ten times as much as one that is read in order.
        self._threads.run(self._penalize, record, len(users), 10 * sum(lengths), seen)

    def mask(self, logits: torch.Tensor, users: Sequence[int], masks: Sequence[Bitmask]) -> None:
        _, vocab_size = _shape(logits)
        lines = array("q", (*users, *(mask.address for mask in masks)))
        at = _address(lines)
        record = BitmaskRecord(
            logits=logits.data_ptr(), vocab_size=vocab_size, batch_index=at, masks=at + 8 * len(users)
        )
        self._threads.run(self._mask, record, len(users), len(users) * vocab_size, [0] * self._threads.count)


def sampling_kernels(threads: int) -> SamplingKernels | None:
    """Compiles the functions, or takes them from disk; None without llvmlite."""
    return None if find_spec("llvmlite") is None else SamplingKernels(threads)


def _shape(logits: torch.Tensor) -> tuple[int, int]:
    """Returns [A, V] of logits that the functions can read."""
    assert logits.is_contiguous() and logits.dtype == torch.float32
    rows, vocab_size = logits.shape
    return rows, vocab_size


def _address(values: "array[int]") -> int:
    return values.buffer_info()[0]
