"""Beams without a model: a beam's candidates are a hash of the prompt and of the beam's own tokens.

    history    mix(prompt) of no output; mix(history + G * (token + 1)) with one token more
    token j    candidates[(history + j) mod len(candidates)]                            j = 0, 1, 2 ...
    its log-probability    -(s_0 + ... + s_j) / 1024,    s_i = 1 + mix(history + G * (i + 1)) mod 1024

`prompt`, `mix`, G and the candidates are those of pagewire_simulated.tokens; seed and sequence index have no
influence.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from pagewire_simulated.tokens import GAMMA, TokenSource, mix, prompt_hash
from worker.step.beams import BeamCandidates


def first_history(prompt: bytes) -> int:
    """Returns the history of a beam without output. prompt: its ids as a column."""
    return mix(prompt_hash(prompt))


def next_history(history: int, token: int) -> int:
    """Returns the history with one token more."""
    return mix(history + GAMMA * (token + 1))


def top_candidates(history: int, candidates: Sequence[int] | Integers, count: int) -> list[tuple[int, float]]:
    """Returns the `count` most probable tokens and their log-probabilities, which float32 holds exactly."""
    sums = accumulate(1 + mix(history + GAMMA * (rank + 1)) % 1024 for rank in range(count))
    return [
        (int(candidates[(history + rank) % len(candidates)]), -total / 1024)
        for rank, total in enumerate(sums)
    ]


class BeamHistories:
    """The hash of each beam's output. A worker.step.plan_reader.RowFeature."""

    def __init__(self, tokens: TokenSource) -> None:
        """tokens: knows which tokens each row may choose."""
        self._tokens = tokens
        self._histories: dict[int, int] = {}

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. A beam begins without output."""
        if new.num_beam_candidates:
            self._histories[row] = first_history(new.token_ids + self._tokens.adapted(new))

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row with the output of its source."""
        if source_row in self._histories:
            self._histories[row] = self._histories[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._histories.pop(row, None)

    def append(self, rows: list[int], token_ids: Integers) -> None:
        """Appends tokens [P] that the core has chosen to beams [P]."""
        for row, token in zip(rows, token_ids.tolist(), strict=True):
            self._histories[row] = next_history(self._histories[row], token)

    def candidates(self, rows: Integers, count: int) -> BeamCandidates:
        """Returns `count` candidates of each of the beams [B]; fewer tokens are padded with -inf."""
        token_ids = np.zeros((len(rows), count), np.int64)
        logprobs = np.full((len(rows), count), -np.inf, np.float32)
        for at, row in enumerate(rows.tolist()):
            allowed = self._tokens.candidates(row)
            top = top_candidates(self._histories[row], allowed, min(count, len(allowed)))
            for rank, candidate in enumerate(top):
                token_ids[at, rank], logprobs[at, rank] = candidate
        return BeamCandidates(token_ids, logprobs)
