"""kernels.ops.logits.penalties of rows whose histories lie in tables, with the compiled functions
(kernels.cpu.sampling.penalties)."""

from array import array
from dataclasses import dataclass

import torch

from kernels.cpu.sampling.api import SamplingKernels
from kernels.cpu.sampling.records import PenaltiesRecord


@dataclass(frozen=True, slots=True)
class Users:
    """The rows of a step that are penalized, and their tables."""

    rows: list[int]  # [U]: index into the rows of the step
    slots: list[int]  # [U]: index into the tables
    lengths: list[int]  # [U]: tokens in the history
    history: torch.Tensor  # [slots, L] int64
    counts: torch.Tensor  # [slots, V] int32
    strengths: torch.Tensor  # [slots, 3] float32


class TablePenalties:
    """The compiled functions. A row of the logits finds its tables by its slot."""

    def __init__(self, kernels: SamplingKernels, vocab_size: int) -> None:
        self._kernels, self._vocab_size = kernels, vocab_size
        # [threads, V]: which tokens a thread has seen in a row. All 0 between rows.
        self._seen = torch.zeros(kernels.threads.count, vocab_size, dtype=torch.uint8)
        self._seen_at = [line.data_ptr() for line in self._seen]

    def apply(self, logits: torch.Tensor, users: Users) -> None:
        """Penalizes logits [A, V] in place."""
        assert logits.is_contiguous() and logits.dtype == torch.float32
        lines = _lines(users)
        record = self._record(users, lines, logits.data_ptr(), 0)
        # A token costs some ten times as much as one that is read in order.
        values = 10 * sum(users.lengths)
        self._kernels.threads.run(self._kernels.penalize_rows, record, len(users.rows), values, self._seen_at)

    def note(self, tokens: torch.Tensor, users: Users) -> None:
        """Appends the rows' tokens to their histories, which have room. tokens: [A] int64."""
        assert tokens.is_contiguous() and tokens.dtype == torch.int64
        lines = _lines(users)
        record = self._record(users, lines, 0, tokens.data_ptr())
        self._kernels.note_tokens(record, 0, len(users.rows))

    def _record(self, users: Users, lines: "array[int]", logits: int, tokens: int) -> PenaltiesRecord:
        """logits, tokens: addresses."""
        history, counts, strengths = users.history, users.counts, users.strengths
        assert history.is_contiguous() and counts.is_contiguous() and strengths.is_contiguous()
        at, line = _address(lines), 8 * len(users.rows)
        return PenaltiesRecord(
            logits=logits,
            vocab_size=self._vocab_size,
            batch_index=at,
            slots=at + line,
            lengths=at + 2 * line,
            history=history.data_ptr(),
            history_stride=history.shape[1],
            counts=counts.data_ptr(),
            strengths=strengths.data_ptr(),
            tokens=tokens,
        )


def _lines(users: Users) -> "array[int]":
    return array("q", users.rows + users.slots + users.lengths)


def _address(values: "array[int]") -> int:
    return values.buffer_info()[0]
