"""Rows that are beams: they offer their likeliest tokens, and the core appends what it has chosen.

How the core chooses is its own affair (engine_core.beam_search.search). numpy alone: the simulated worker
has this too.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.step.rows import require

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Offers:
    """What B beams offer: K tokens each, of which each wants as many as it has asked for."""

    token_ids: Integers  # [B, K], the likeliest first, of equals the lower id
    logprobs: npt.NDArray[np.float32]  # [B, K]; -inf: masked; NaN: there is nothing to choose from


class Beams:
    """A worker.step.plan_reader.RowFeature: how many tokens each row offers."""

    def __init__(self, max_num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts = np.zeros(max_num_rows, np.int64)  # 0: the row is no beam
        self._members: set[int] = set()

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        require(new.num_beam_candidates <= self._vocab_size, "a beam offers more tokens than there are")
        self._set(row, new.num_beam_candidates)

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """As many."""
        self._set(row, int(self._counts[source_row]))

    def remove_row(self, row: int) -> None:
        """No beam any more."""
        self._set(row, 0)

    def _set(self, row: int, count: int) -> None:
        self._counts[row] = count
        if count:
            self._members.add(row)
        else:
            self._members.discard(row)

    def are_among(self, rows: Integers) -> bool:
        """Whether some of the rows [A] are beams; mostly nobody is."""
        return bool(self._members) and bool(self.among(rows).any())

    def among(self, rows: Integers) -> npt.NDArray[np.bool_]:
        """Which of the rows [A] are beams."""
        return self._counts[rows] > 0

    def counts(self, rows: Integers) -> Integers:
        """Tokens that each of these beams [B] offers."""
        return self._counts[rows]

    def most(self, rows: Integers) -> int:
        """The largest number of tokens that one of these beams offers."""
        return int(self._counts[rows].max())

    def put(self, offers: Offers, rows: Integers, result: worker_pb2.StepResult) -> Integers:
        """put_offers() of these beams [B]."""
        return put_offers(offers, self._counts[rows], result)


def put_offers(offers: Offers, counts: Integers, result: worker_pb2.StepResult) -> Integers:
    """Writes offers, of which each beam has counts [B], into the columns of the result.

    Returns what stands in the place of a token: 0, or NO_TOKEN for a beam that has nothing to offer.
    """
    wanted = np.arange(offers.token_ids.shape[1]) < counts[:, None]
    result.beam_token_ids = offers.token_ids[wanted].astype("<u4").tobytes()
    result.beam_logprobs = offers.logprobs[wanted].astype("<f4").tobytes()
    return np.where(np.isfinite(offers.logprobs[:, 0]), 0, NO_TOKEN)
