"""Ends output that repeats itself: the same few tokens, several times in a row.

The state is a function of the tokens, so a continued stream ends where the broken one would have.
"""

from collections.abc import Sequence


class RepetitionDetector:
    """Watches the tokens of one sequence. Costs max_ngram comparisons per token."""

    __slots__ = ("_count", "_min_tokens", "_recent", "_runs", "_num_tokens")

    def __init__(self, max_ngram: int, count: int, min_tokens: int = 0) -> None:
        """The output repeats itself when it ends with `count` equal n-grams, n from 1 to max_ngram.
        min_tokens: it may do so until it has more than these."""
        self._count = count
        self._min_tokens = min_tokens
        self._recent: list[int] = []  # the last max_ngram tokens, newest first
        self._runs = [0] * max_ngram  # how many of the last tokens equal the one n tokens before, by n - 1
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int]) -> int | None:
        """Consumes tokens. Returns how many there are up to the one with which the output repeats itself;
        None: it does not."""
        for place, token in enumerate(token_ids):
            repeats = self._push(token)
            if repeats and self._num_tokens > self._min_tokens:
                return place + 1
        return None

    def _push(self, token: int) -> bool:
        repeats = False
        for place, before in enumerate(self._recent):
            run = self._runs[place] = self._runs[place] + 1 if before == token else 0
            repeats |= run >= (place + 1) * (self._count - 1)
        self._recent.insert(0, token)
        del self._recent[len(self._runs) :]
        self._num_tokens += 1
        return repeats
