"""Figures about the core: hits of its cache lately, and counts of what should not happen."""

from collections import deque
from dataclasses import dataclass

_QUERIES = 1000


class HitRate:
    """Tokens found over tokens asked for, of the last thousand queries."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, int]] = deque()  # (asked, found)
        self._asked = self._found = 0

    def add(self, asked: int, found: int) -> None:
        """One query."""
        self._last.append((asked, found))
        self._asked += asked
        self._found += found
        if len(self._last) > _QUERIES:
            asked, found = self._last.popleft()
            self._asked -= asked
            self._found -= found

    @property
    def ratio(self) -> float:
        """0 to 1; 0 before the first query."""
        return self._found / self._asked if self._asked else 0.0


@dataclass(slots=True)
class Counters:
    """What should not happen, counted since the start."""

    bad_messages: int = 0  # from frontends: well-formed, but against the contract
    internal_errors: int = 0  # exceptions while handling one message
    broken_invariants: int = 0
