"""The drafters of one executor, in the order in which they are asked: the first that has an idea drafts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernels.ops.attention.ragged import Integers
from worker.speculation.drafter import Drafter

FIRST = 4
"""Tokens of a row's first draft."""
LONGEST_PAUSE = 64
"""Tokens without a draft behind those that were wrong."""
UNPAUSED = 2
"""Wrong drafts, one after the other, before the first pause."""
Shorten = Callable[[int, list[int]], list[int]]
"""Returns the part of a row's draft that is of use."""


@dataclass(slots=True)
class _Record:
    length: int
    misses: int = 0  # drafts without an accepted token, since the last accepted one
    resumes_at: int = 0  # tokens of the row from which on it is drafted for


class DraftLengths:
    """How many tokens to draft for a row, from what was accepted lately.

    All accepted: twice as many next time. Some: one more than these, or three quarters as many as before.
    None: half as many. Drafts that are right with a probability of 0.8 a token begin with a wrong one in
    every fifth step, so a row is drafted for again at once after one or two such drafts; after each further
    one there is a pause of 2 tokens, then 4, 8 ... 64, until a draft is accepted again: drafts that are
    always wrong cost a row about one percent of its steps.
    """

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


@dataclass(frozen=True)
class Source:
    """A drafter, and how long its drafts are."""

    method: int  # a DraftMethod of engine.proto
    drafter: Drafter
    lengths: DraftLengths

    def wanted(self, rows: Mapping[int, int], num_tokens: Integers) -> dict[int, int]:
        """Returns the rows that it drafts for, and how many tokens: those of `rows`, or fewer."""
        lengths = {
            row: min(most, self.lengths.length(row, int(num_tokens[row]))) for row, most in rows.items()
        }
        return {row: length for row, length in lengths.items() if length > 0}


class Sources:
    """Asks drafters, and remembers which of them drafted for a row."""

    def __init__(
        self,
        drafters: Sequence[tuple[int, Drafter]],
        most: int,
        shorten: Shorten = lambda row, tokens: tokens,
    ) -> None:
        """drafters: with their methods. most: tokens of a draft."""
        self._shorten = shorten
        self._sources = [Source(method, drafter, DraftLengths(most)) for method, drafter in drafters]
        self._of_row: dict[int, Source] = {}  # of its last draft
        self.computed_prompts = False
        """Whether the last draft() took longer than others, since a draft model computed prompts."""

    def remove_row(self, row: int) -> None:
        """Ends a row; one that is not in use is ignored."""
        self._of_row.pop(row, None)
        for source in self._sources:
            source.drafter.remove_row(row)
            source.lengths.remove_row(row)

    def draft(self, rows: Mapping[int, int], num_tokens: Integers) -> dict[int, list[int]]:
        """Returns drafts of rows, of at most so many tokens. num_tokens: by row."""
        found: dict[int, list[int]] = {}
        self.computed_prompts = False
        for source in self._sources:
            found |= self._ask(source, _others(rows, found), num_tokens)
        return found

    def foresee(self, rows: Mapping[int, int], num_tokens: Integers) -> dict[int, int]:
        """Returns how many tokens draft() would return at most."""
        lengths: dict[int, int] = {}
        for source in self._sources:
            others = _others(rows, lengths)
            if source.drafter.is_free:
                found = self._ask(source, others, num_tokens)
                lengths |= {row: len(tokens) for row, tokens in found.items()}
            else:
                lengths |= source.wanted(others, num_tokens)
        return lengths

    def method(self, row: int) -> int:
        """Returns what drafted last for a row, a DraftMethod."""
        return self._of_row[row].method

    def judge(self, row: int, num_tokens: int, drafted: int, accepted: int) -> None:
        """Takes what became of a row's last draft; see DraftLengths."""
        self._of_row[row].lengths.judge(row, num_tokens, drafted, accepted)

    def _ask(self, source: Source, rows: Mapping[int, int], num_tokens: Integers) -> dict[int, list[int]]:
        wanted = source.wanted(rows, num_tokens)
        if not wanted:
            return {}
        drafts = source.drafter.draft(list(wanted), list(wanted.values()))
        self.computed_prompts |= source.drafter.computed_prompts
        drafts = list(map(self._shorten, wanted, drafts))
        found = {row: tokens for row, tokens in zip(wanted, drafts, strict=True) if tokens}
        self._of_row |= dict.fromkeys(found, source)
        return found


def _others(rows: Mapping[int, int], found: Mapping[int, object]) -> dict[int, int]:
    return {row: most for row, most in rows.items() if row not in found}
