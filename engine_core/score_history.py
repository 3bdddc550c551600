"""Log-probabilities that were sent, for another call of a request that may need them once more.

They are kept of requests whose client chose the id, up to a bound per sequence; behind it the oldest go. The
tokens themselves are all there: Sequence.output.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.ipc.logprob_columns import TokenColumns, join_tokens

MOST_BYTES = 256 << 10
"""Kept of one sequence, or of one prompt."""
_OVERHEAD = 256
"""Bytes of a token's columns beside what they hold."""


class ScoreHistory:
    """Columns of consecutive tokens, from position `first` on."""

    __slots__ = ("first", "_tokens", "_num_bytes")

    def __init__(self, first: int) -> None:
        self.first = first
        self._tokens: list[TokenColumns] = []
        self._num_bytes = 0

    def add(self, position: int, tokens: Iterable[TokenColumns]) -> None:
        """Adds tokens from a position on. Those before are forgotten unless they end there, and when there is
        no room."""
        if position != self.first + len(self._tokens):
            self._restart(position)
        for token in tokens:
            size = _OVERHEAD + token.num_bytes
            if self._num_bytes + size > MOST_BYTES:
                self._restart(self.first + len(self._tokens))
            self._tokens.append(token)
            self._num_bytes += size

    def between(self, start: int, end: int) -> LogprobColumns | None:
        """Returns the columns of the tokens at positions start to end - 1, at least one; None: they are not
        all here."""
        if not self.first <= start < end <= self.first + len(self._tokens):
            return None
        return join_tokens(self._tokens[start - self.first : end - self.first])

    def _restart(self, position: int) -> None:
        self.first, self._num_bytes = position, 0
        self._tokens.clear()
