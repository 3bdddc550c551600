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
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from kernels.cpu.runtime.arena import zeros
from kernels.cpu.runtime.row_threads import RowThreads
from kernels.cpu.sampling.records import UNKNOWN, BitmaskRecord, ChooseRecord, PenaltiesRecord
from kernels.ops.sampling.choose import choose_tokens
from kernels.ops.sampling.columns import SamplingColumns

LINE = 64  # bytes of a cache line


@dataclass(frozen=True, slots=True)
class Histories:
    """The rows of a step that are penalized, and the tables that their histories lie in."""

    rows: list[int]  # [U]: index into the rows of the step
    slots: list[int]  # [U]: index into the tables
    lengths: list[int]  # [U]: tokens in the history
    history: torch.Tensor  # [slots, L] int64
    counts: torch.Tensor  # [slots, V] int32
    strengths: torch.Tensor  # [slots, 3] float32


class _Scratch:
    """Memory of each thread, zeros whose pages are taken when they are first written; and a record."""

    def __init__(self, threads: int, size: int) -> None:
        self._memory = zeros((threads, size), torch.uint8)
        self.addresses = [line.data_ptr() for line in self._memory]
        self.record = ChooseRecord()


class SamplingKernels:
    """The compiled functions, with threads and the scratch memory of each."""

    def __init__(self, threads: int) -> None:
        from kernels.cpu.sampling import choose, logits_processors, scratch  # compiles, the first time

        self._threads = RowThreads(threads)
        self._choose, self._mask = choose.choose_rows, logits_processors.mask_rows
        self._penalize, self._note = logits_processors.penalize_rows, logits_processors.note_tokens
        self._scratch_bytes = scratch.scratch_bytes
        self._scratch: dict[int, _Scratch] = {}  # by the size of the vocabulary
        self._seen: dict[int, _Scratch] = {}  # the same: a byte per token in a row's history; 0 between rows

    def choose_tokens(
        self, logits: torch.Tensor, rows: Sequence[int], columns: SamplingColumns
    ) -> torch.Tensor:
        """Returns tokens [A] int64 for logits [A, V]; -1 where the largest logit is not finite."""
        tokens = self.known_tokens(logits, rows, columns)
        if UNKNOWN in tokens:
            for index in (index for index, token in enumerate(tokens) if token == UNKNOWN):
                tokens[index] = int(choose_tokens(logits[index : index + 1], [rows[index]], columns)[0])
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

    def penalize(self, logits: torch.Tensor, users: Histories) -> None:
        """Penalizes logits [A, V] in place as kernels.ops.sampling.logits_processors.penalties does, each
        token of a history once, however often it is there."""
        _, vocab_size = _shape(logits)
        lines = _lines(users)
        record = _record(users, lines, logits.data_ptr(), 0)
        if vocab_size not in self._seen:
            self._seen[vocab_size] = _Scratch(self._threads.count, vocab_size)
        seen = self._seen[vocab_size].addresses
        # A token costs some ten times as much as one that is read in order.
        self._threads.run(self._penalize, record, len(users.rows), 10 * sum(users.lengths), seen)

    def append(self, tokens: torch.Tensor, users: Histories) -> None:
        """Appends the rows' tokens to their histories, which have capacity, and counts them; 0 in place of a
        negative one. tokens: [A] int64."""
        assert tokens.is_contiguous() and tokens.dtype == torch.int64
        lines = _lines(users)
        self._note(_record(users, lines, 0, tokens.data_ptr()), 0, len(users.rows))

    def mask(self, logits: torch.Tensor, users: Sequence[int], masks: Sequence[int]) -> None:
        """Masks rows [U] of logits [A, V] in place as kernels.ops.sampling.logits_processors.apply_bitmask
        does. users: their distinct indexes; masks: the address of the words of each, [ceil(V / 32)] int32."""
        _, vocab_size = _shape(logits)
        assert len(users) == len(masks)
        lines = array("q", [*users, *masks])
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


def _record(users: Histories, lines: "array[int]", logits: int, tokens: int) -> PenaltiesRecord:
    """logits, tokens: addresses."""
    history, counts, strengths = users.history, users.counts, users.strengths
    assert history.is_contiguous() and counts.is_contiguous() and strengths.is_contiguous()
    at, line = _address(lines), 8 * len(users.rows)
    return PenaltiesRecord(
        logits=logits,
        vocab_size=counts.shape[1],
        batch_index=at,
        slots=at + line,
        lengths=at + 2 * line,
        history=history.data_ptr(),
        history_stride=history.shape[1],
        counts=counts.data_ptr(),
        strengths=strengths.data_ptr(),
        tokens=tokens,
    )


def _lines(users: Histories) -> "array[int]":
    return array("q", users.rows + users.slots + users.lengths)


def _address(values: "array[int]") -> int:
    return values.buffer_info()[0]
