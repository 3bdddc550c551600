"""Beams without a model: what a beam offers is a hash of the prompt and of the beam's own tokens.

    history    mix(prompt) of no output; mix(history + G * (token + 1)) with one token more
    token j    candidates[(history + j) mod len(candidates)]                            j = 0, 1, 2 ...
    its log-probability    -(s_0 + ... + s_j) / 1024,    s_i = 1 + mix(history + G * (i + 1)) mod 1024

`prompt`, `mix`, G and the candidates are those of worker.simulated.tokens; neither seed nor index counts.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.simulated.tokens import GAMMA, TokenSource, mix, prompt_hash
from worker.step.beams import Beams, Offers


def first_history(prompt: bytes) -> int:
    """Of a beam without output. prompt: its ids as a column."""
    return mix(prompt_hash(prompt))


def next_history(history: int, token: int) -> int:
    """With one token more."""
    return mix(history + GAMMA * (token + 1))


def offers_of(history: int, candidates: Sequence[int] | Integers, count: int) -> list[tuple[int, float]]:
    """The likeliest tokens, with their log-probabilities, which float32 holds exactly."""
    sums = accumulate(1 + mix(history + GAMMA * (place + 1)) % 1024 for place in range(count))
    return [
        (int(candidates[(history + place) % len(candidates)]), -total / 1024)
        for place, total in enumerate(sums)
    ]


class SimulatedBeams(Beams):
    """The beams among the rows, and what they have said."""

    def __init__(self, max_num_rows: int, vocab_size: int, tokens: TokenSource) -> None:
        """tokens: knows what may be chosen."""
        super().__init__(max_num_rows, vocab_size)
        self._tokens = tokens
        self._histories: dict[int, int] = {}

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """See Beams. A beam begins without output."""
        super().add_row(row, new, prompt_ids, output_ids)
        if new.num_beam_candidates:
            self._histories[row] = first_history(new.token_ids)

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """See Beams."""
        super().fork_row(row, source_row, sequence_index)
        if source_row in self._histories:
            self._histories[row] = self._histories[source_row]

    def remove_row(self, row: int) -> None:
        """See Beams."""
        super().remove_row(row)
        self._histories.pop(row, None)

    def append(self, rows: list[int], token_ids: Integers) -> None:
        """Tokens [P] that the core has chosen."""
        for row, token in zip(rows, token_ids.tolist(), strict=True):
            self._histories[row] = next_history(self._histories[row], token)

    def offer(self, rows: Integers, result: worker_pb2.StepResult) -> Integers:
        """The offers of these beams [B]; what stands in the place of their tokens."""
        most = self.most(rows)
        token_ids = np.zeros((len(rows), most), np.int64)
        logprobs = np.full((len(rows), most), -np.inf, np.float32)
        for at, row in enumerate(rows.tolist()):
            candidates = self._tokens.candidates(row)
            count = min(most, len(candidates))
            for place, offer in enumerate(offers_of(self._histories[row], candidates, count)):
                token_ids[at, place], logprobs[at, place] = offer
        return self.put(Offers(token_ids, logprobs), rows, result)
