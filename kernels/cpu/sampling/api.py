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
from importlib.util import find_spec

import torch

from kernels.cpu.runtime.arena import zeros
from kernels.cpu.sampling.records import BitmaskRecord, PenaltiesRecord
from kernels.ops.sampling.columns import SamplingColumns
from kernels.ops.sampling.logits_processors import Bitmask, PenaltyHistory
from kernels.sampling_ops import SamplingOps


class SamplingKernels(SamplingOps):
    """The compiled functions, by the threads that run programs."""

    copies_logits = False

    def __init__(self) -> None:
        from kernels.cpu.runtime import thread_pool  # compiles, the first time
        from kernels.cpu.sampling import choose, logits_processors

        self._team, self._make_choice = thread_pool.TEAM, choose.Choice
        self._mask, self._penalize = logits_processors.mask_rows, logits_processors.penalize_rows
        self._program = thread_pool.Program(choose.RECORDS)
        self._choice: choose.Choice | None = None
        self._seen = torch.empty(0, 0)  # a byte per thread and token in a row's history; 0 between rows

    def choose_tokens(
        self, logits: torch.Tensor, rows: Sequence[int], columns: SamplingColumns
    ) -> torch.Tensor:
        tokens = self.known_tokens(logits, rows, columns)
        self.choose_unknown(tokens, lambda: logits, rows, columns)
        return tokens

    def known_tokens(
        self, logits: torch.Tensor, rows: Sequence[int], columns: SamplingColumns
    ) -> torch.Tensor:
        """Returns tokens as choose_tokens() does, but UNKNOWN for those that torch is to choose: sums are
        taken in vectors, in another order, and the last bits of one could matter; or the row has a typical_p.
        exp() may differ in the last bit."""
        count, vocab_size = _shape(logits)
        assert count == len(rows)
        choice = self._choice
        if choice is None or not choice.fits(count, vocab_size):
            choice = self._choice = self._make_choice(max(64, count), vocab_size, self._team)
            for index, (operation, record) in enumerate(choice.operations()):
                self._program.put(index, operation, 0, record, 1, repeatable=True)
        of_columns = array("q", rows)
        choice.set_rows(self._program.records, logits, columns, _address(of_columns))
        self._team.run(self._program)
        return choice.tokens[:count].clone()

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
        if self._seen.shape != (self._team.threads, vocab_size):
            self._seen = zeros((self._team.threads, vocab_size), torch.uint8)
        record = PenaltiesRecord(
            logits=logits.data_ptr(),
            vocab_size=vocab_size,
            batch_index=at,
            lengths=at + line,
            histories=at + 2 * line,
            counts=at + 3 * line,
            strengths=at + 4 * line,
            seen=self._seen.data_ptr(),
        )
        self._team.run_one(self._penalize, len(users), record, 1)

    def mask(self, logits: torch.Tensor, users: Sequence[int], masks: Sequence[Bitmask]) -> None:
        _, vocab_size = _shape(logits)
        lines = array("q", (*users, *(mask.address for mask in masks)))
        at = _address(lines)
        record = BitmaskRecord(
            logits=logits.data_ptr(), vocab_size=vocab_size, batch_index=at, masks=at + 8 * len(users)
        )
        self._team.run_one(self._mask, len(users), record, 1)


def sampling_kernels(threads: int = 0) -> SamplingKernels | None:
    """Compiles the functions, or takes them from disk; None without llvmlite. threads: of all programs of
    this process from now on; 0: as many as before."""
    if find_spec("llvmlite") is None:
        return None
    from kernels.cpu.runtime.thread_pool import TEAM  # compiles, the first time

    TEAM.set_threads(threads or TEAM.threads)
    return SamplingKernels()


def _shape(logits: torch.Tensor) -> tuple[int, int]:
    """Returns [A, V] of logits that the functions can read."""
    assert logits.is_contiguous() and logits.dtype == torch.float32
    rows, vocab_size = logits.shape
    return rows, vocab_size


def _address(values: "array[int]") -> int:
    return values.buffer_info()[0]
