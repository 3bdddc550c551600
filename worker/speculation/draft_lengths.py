"""How many tokens to draft for a row, from what was accepted lately.

All accepted: twice as many next time. Some: one more than these, or three quarters as many as before. None:
half as many. Drafts that are right with a probability of 0.8 a token begin with a wrong one in every fifth
step, so a row is drafted for again at once after one or two such drafts; after each further one there is a
pause of 2 tokens, then 4, 8 ... 64, until a draft is accepted again: drafts that are always wrong cost a row
about one percent of its steps.
"""

from dataclasses import dataclass

FIRST = 4
"""Tokens of a row's first draft."""
LONGEST_PAUSE = 64
"""Tokens without a draft behind those that were wrong."""
UNPAUSED = 2
"""Wrong drafts, one after the other, before the first pause."""


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
            record.length = min(self._most, max(longer, -(-3 * record.length // 4)))
            record.misses = 0
        else:
            record.length = max(1, record.length // 2)
            record.misses += 1
            if record.misses > UNPAUSED:
                pause = min(LONGEST_PAUSE, 1 << record.misses - UNPAUSED)
                record.resumes_at = num_tokens + pause

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._records.pop(row, None)
