"""How many tokens to draft for a row, from what was accepted lately.

All accepted: twice as many next time. Some: one more than these, or half as many as before. None: half as
many, and a pause of 2 tokens, then 4, 8 ... 64, until a draft is accepted again: drafts that are always wrong
cost a row less than one percent of its steps.
"""

from dataclasses import dataclass

FIRST = 4
"""Tokens of a row's first draft."""
LONGEST_PAUSE = 64
"""Tokens without a draft behind one that was wrong."""


@dataclass(slots=True)
class _Record:
    length: int
    misses: int = 0  # drafts without an accepted token, since the last accepted one
    resumes_at: int = 0  # tokens of the row from which on it is drafted for


class DraftLengths:
    """The lengths of all rows."""

    def __init__(self, most: int) -> None:
        """most: tokens of a draft."""
        self._most = most
        self._records: dict[int, _Record] = {}

    def length(self, row: int, num_tokens: int) -> int:
        """Returns how many tokens to draft for a row of num_tokens; 0: none at present."""
        record = self._records.get(row)
        if record is None:
            return min(FIRST, self._most)
        return record.length if num_tokens >= record.resumes_at else 0

    def judge(self, row: int, num_tokens: int, drafted: int, accepted: int) -> None:
        """Takes what became of a draft. num_tokens: of the row now."""
        record = self._records.setdefault(row, _Record(min(FIRST, self._most)))
        if accepted:
            longer = 2 * drafted if accepted == drafted else accepted + 1
            record.length = min(self._most, max(longer, record.length // 2))
            record.misses = 0
        else:
            record.length = max(1, record.length // 2)
            record.misses += 1
            record.resumes_at = num_tokens + min(LONGEST_PAUSE, 1 << record.misses)

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._records.pop(row, None)
