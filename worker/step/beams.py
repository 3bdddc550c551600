"""Rows that are beams: they give their most probable tokens, and the core appends those that it chooses.

The choice is made by engine_core.beam_search. numpy alone: the simulated worker uses this too.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.step.rows import require

NO_TOKEN = -1
"""In place of a token: the row's logits left nothing to choose from."""


@dataclass(frozen=True, slots=True)
class BeamCandidates:
    """Candidates of B beams: K each, of which a beam returns as many as it requested."""

    token_ids: Integers  # [B, K] most probable first, of equals the lower id
    logprobs: npt.NDArray[np.float32]  # [B, K]; -inf: masked; NaN: there is nothing to choose from


class BeamRows:
    """How many candidates each row returns. A worker.step.plan_reader.RowFeature."""

    def __init__(self, max_num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts = np.zeros(max_num_rows, np.int64)  # 0: the row is no beam
        self._members: set[int] = set()

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        require(new.num_beam_candidates <= self._vocab_size, "a beam offers more tokens than there are")
        self._set(row, new.num_beam_candidates)

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row with as many candidates as its source."""
        self._set(row, int(self._counts[source_row]))

    def remove_row(self, row: int) -> None:
        self._set(row, 0)

    def _set(self, row: int, count: int) -> None:
        self._counts[row] = count
        if count:
            self._members.add(row)
        else:
            self._members.discard(row)

    def any_in(self, rows: Integers) -> bool:
        """Returns whether some of the rows [A] are beams."""
        return bool(self._members) and bool(self.mask(rows).any())

    def mask(self, rows: Integers) -> npt.NDArray[np.bool_]:
        """Returns which of the rows [A] are beams."""
        return self._counts[rows] > 0

    def counts(self, rows: Integers) -> Integers:
        """Returns the number of candidates of each of the rows [A]; 0: the row is no beam."""
        return self._counts[rows]


def write_candidates(
    candidates: BeamCandidates, counts: Integers, result: worker_pb2.StepResult
) -> npt.NDArray[np.int64]:
    """Writes the first counts [B] candidates of each beam into the columns of the result.

    Returns what stands in place of a token [B]: 0, or NO_TOKEN for a beam without candidates.
    """
    requested = np.arange(candidates.token_ids.shape[1]) < counts[:, None]
    result.beam_token_ids = candidates.token_ids[requested].astype("<u4").tobytes()
    result.beam_logprobs = candidates.logprobs[requested].astype("<f4").tobytes()
    return np.where(np.isfinite(candidates.logprobs[:, 0]), 0, NO_TOKEN)
