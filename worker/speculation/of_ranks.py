"""Drafts in a tensor-parallel group: rank 0 drafts, as one worker does, and tells the others.

All ranks know how many tokens may be drafted for which rows, so they know the size of what they are told.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kernels.ops.attention.ragged import Integers
from worker.speculation.drafter import Drafter
from worker.speculation.sources import Shorten, Sources

Tell = Callable[[Integers], Integers]
"""Returns the int64 array of rank 0, on every rank; those of the others have its shape."""


class _SourcesOfRank(Sources):
    def __init__(
        self, drafters: Sequence[tuple[int, Drafter]], most: int, shorten: Shorten, tell: Tell
    ) -> None:
        """All but tell: see Sources."""
        super().__init__(drafters, most, shorten)
        self._tell = tell


class FirstSources(_SourcesOfRank):
    """Drafts for all ranks."""

    def draft(self, rows: Mapping[int, int], num_tokens: Integers) -> dict[int, list[int]]:
        return _told(self._tell, rows, super().draft(rows, num_tokens))


class FollowingSources(_SourcesOfRank):
    """Takes the drafts of rank 0, where their lengths and what drafts are kept; it has no drafters."""

    def draft(self, rows: Mapping[int, int], num_tokens: Integers) -> dict[int, list[int]]:
        return _told(self._tell, rows, {})

    def method(self, row: int) -> int:
        """The core hears of those of rank 0 alone."""
        return 0

    def judge(self, row: int, num_tokens: int, drafted: int, accepted: int) -> None:
        """Rank 0 does."""


def _told(tell: Tell, rows: Mapping[int, int], found: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """Returns the drafts of rank 0. rows: the most tokens of each. found: of this rank."""
    if not rows:
        return {}
    table = np.zeros((len(rows), 1 + max(rows.values())), np.int64)
    for line, row in zip(table, rows, strict=True):
        tokens = found.get(row, [])
        line[0], line[1 : 1 + len(tokens)] = len(tokens), tokens
    drafts = zip(rows, tell(table).tolist(), strict=True)
    return {row: tokens[:length] for row, (length, *tokens) in drafts if length}
