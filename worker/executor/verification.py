"""Samples at one position after the other, and goes on while the token is the drafted one.

Each position is sampled as if it were the only one of its step: with the row's history up to there, its
penalties and masks, its log-probabilities, and the random number of (seed, sequence index, position). So the
tokens are those that single steps sample from the same logits, whatever was drafted.
"""

from collections.abc import Callable, Container

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.logprob_columns import join, pick
from worker.executor.backend import SampledTokens

Sample = Callable[[Integers, Integers], SampledTokens]
"""Samples for entries [N] of the step's sample_rows from these of its logits [N], and appends the tokens to
the rows. The host knows the tokens."""


class Verification:
    """The samples of one step with drafts. A: entries of its sample_rows."""

    def __init__(self, drafts: list[list[int]], num_logits: Integers) -> None:
        """drafts: [A] drafted tokens. num_logits: [A] logits of each entry, one behind the other."""
        self._drafts = drafts
        self.first: Integers = np.cumsum(num_logits) - num_logits
        """[A] the first of each entry's logits."""
        self._rounds: list[tuple[list[int], SampledTokens]] = []  # entries that sampled at the next position
        self.counts: Integers = np.zeros(len(num_logits), np.int64)
        """[A] tokens that each entry has got."""

    def sample(self, entries: Integers, sample: Sample) -> None:
        """Samples for these entries [N] until each has a token that was not drafted."""
        position = 0
        while len(entries):
            sampled = sample(entries, self.first[entries] + position)
            self._rounds.append((entries.tolist(), sampled))
            self.counts[entries] += 1
            samples = zip(entries.tolist(), sampled.host_tokens.tolist(), strict=True)
            accepted = [entry for entry, token in samples if self._accepts(entry, position, token)]
            entries = np.array(accepted, np.int64)
            position += 1

    def _accepts(self, entry: int, position: int, token: int) -> bool:
        return self._drafts[entry][position : position + 1] == [token]

    def result(self, scored: Container[int]) -> SampledTokens:
        """Returns all tokens, entry after entry. scored: entries that request log-probabilities."""
        owners = np.concatenate([np.array(entries, np.int64) for entries, _ in self._rounds])
        sampled = np.concatenate([sampled.host_tokens for _, sampled in self._rounds])
        tokens: Integers = sampled[np.argsort(owners, kind="stable")]
        return SampledTokens(tokens, lambda: tokens, lambda: self._logprobs(scored))

    def _logprobs(self, scored: Container[int]) -> engine_pb2.LogprobColumns | None:
        found: list[tuple[int, engine_pb2.LogprobColumns]] = []
        for entries, sampled in self._rounds:
            columns = sampled.logprobs()
            if columns is not None:
                members = [entry for entry in entries if entry in scored]
                found += [(entry, pick(columns, [index])) for index, entry in enumerate(members)]
        found.sort(key=lambda pair: pair[0])
        return join([columns for _, columns in found]) if found else None
