"""Log-probabilities in messages: which rows request them, and with which candidates; and results as columns.

It does not import torch: the simulated worker uses it too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.v1 import generation_pb2
from worker.step.rows import require

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class LogprobCandidates:
    """Tokens reported at each position besides the chosen one: at most one of the three is set."""

    top_n: int = 0
    token_ids: tuple[int, ...] = ()
    all: bool = False

    def count(self, vocab_size: int) -> int:
        """Returns their number."""
        return vocab_size if self.all else self.top_n or len(self.token_ids)


def read_candidates(options: generation_pb2.LogprobOptions, vocab_size: int) -> LogprobCandidates:
    """Reads the candidates of a message. Raises PlanError when one is outside the vocabulary."""
    candidates = LogprobCandidates(options.top_n, tuple(options.token_ids.ids), options.all)
    require(candidates.top_n <= vocab_size, f"{candidates.top_n} candidates of {vocab_size} tokens")
    require(max(candidates.token_ids, default=0) < vocab_size, "a candidate is out of range")
    return candidates


@dataclass(slots=True)
class PendingPromptLogprobs:
    """Positions next to end - 1 of a row's prompt, whose log-probabilities have not been returned yet."""

    candidates: LogprobCandidates
    next: int
    end: int  # the prompt's length


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Positions start to end - 1 of a row's prompt, scored in one step.

    Their log-probabilities come from the logits at positions start - 1 to end - 2.
    """

    index: int  # of the row among those that compute
    row: int
    offset: int  # of position start - 1 among the positions that the row computes
    start: int
    end: int
    candidates: LogprobCandidates


class LogprobRequests:
    """Log-probabilities requested by row; other rows take no space. A worker.step.plan_reader.RowFeature."""

    def __init__(self, vocab_size: int) -> None:
        self.sampled: dict[int, LogprobCandidates] = {}
        """Rows that request them for the tokens that they sample."""
        self._prompts: dict[int, PendingPromptLogprobs] = {}
        self._vocab_size = vocab_size

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        if new.HasField("logprobs"):
            self.sampled[row] = read_candidates(new.logprobs, self._vocab_size)
        if new.HasField("prompt_logprobs") and new.prompt_logprobs_start < len(prompt_ids):
            require(new.prompt_logprobs_start > 0, "log-probabilities of position 0 do not exist")
            candidates = read_candidates(new.prompt_logprobs, self._vocab_size)
            pending = PendingPromptLogprobs(candidates, new.prompt_logprobs_start, len(prompt_ids))
            self._prompts[row] = pending

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row that requests what its source does of its samples, and nothing of the prompt."""
        if source_row in self.sampled:
            self.sampled[row] = self.sampled[source_row]

    def remove_row(self, row: int) -> None:
        self.sampled.pop(row, None)
        self._prompts.pop(row, None)

    def any_in(self, rows: Integers) -> bool:
        """Returns whether some of the rows [A] request log-probabilities of what they sample."""
        return bool(self.sampled) and not self.sampled.keys().isdisjoint(rows.tolist())

    def prompt_parts(self, rows: Integers, starts: Integers, counts: Integers) -> list[PromptPart]:
        """Returns the parts that a step of these rows [R] computes; they are not pending any more.

        Raises PlanError when a row skips a position whose log-probability was requested.
        """
        return list(self._take_parts(rows, starts, counts)) if self._prompts else []

    def _take_parts(self, rows: Integers, starts: Integers, counts: Integers) -> Iterator[PromptPart]:
        for index, row in enumerate(rows.tolist()):
            pending = self._prompts.get(row)
            if pending is None:
                continue
            first = int(starts[index])
            require(first < pending.next, f"row {row} leaves out log-probabilities of its prompt")
            end = min(first + int(counts[index]) + 1, pending.end)
            if end > pending.next:
                offset = pending.next - 1 - first
                yield PromptPart(index, row, offset, pending.next, end, pending.candidates)
                pending.next = end
            if end == pending.end:
                del self._prompts[row]


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Scores of M tokens. Candidates are padded to the same number K: the first counts[i] of token i are
    valid."""

    logprobs: Floats  # [M]
    ranks: Integers  # [M]
    counts: Integers  # [M]
    candidate_ids: Integers  # [M, K]
    candidate_logprobs: Floats  # [M, K]
    candidate_ranks: Integers  # [M, K]


def to_columns(tables: Sequence[ScoreTable]) -> engine_pb2.LogprobColumns:
    """Returns the tokens of all tables, one table after another."""
    counts = _joined([table.counts for table in tables])
    real = [np.arange(table.candidate_ids.shape[1]) < table.counts[:, None] for table in tables]

    def candidates(name: str) -> npt.NDArray[np.generic]:
        return _joined([getattr(table, name)[mask] for table, mask in zip(tables, real, strict=True)])

    return engine_pb2.LogprobColumns(
        logprobs=_floats(_joined([table.logprobs for table in tables])),
        ranks=_integers(_joined([table.ranks for table in tables])),
        candidate_counts=_integers(counts) if counts.any() else b"",
        candidate_token_ids=_integers(candidates("candidate_ids")),
        candidate_logprobs=_floats(candidates("candidate_logprobs")),
        candidate_ranks=_integers(candidates("candidate_ranks")),
    )


def _joined(parts: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _integers(values: npt.NDArray[np.generic]) -> bytes:
    return values.astype("<u4").tobytes()


def _floats(values: npt.NDArray[np.generic]) -> bytes:
    return values.astype("<f4").tobytes()
