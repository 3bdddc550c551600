"""The drafters of one executor, in the order in which they are asked: the first that has an idea drafts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernels.ops.attention.ragged import Integers
from worker.speculation.draft_lengths import DraftLengths
from worker.speculation.drafter import Drafter


@dataclass(frozen=True)
class Source:
    """A drafter, and how long its drafts are."""

    method: int  # a DraftMethod of worker.proto
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
        shorten: Callable[[int, list[int]], list[int]] = lambda row, tokens: tokens,
    ) -> None:
        """drafters: with their methods. most: tokens of a draft. shorten: returns the part of a row's draft
        that is of use."""
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
