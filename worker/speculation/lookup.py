"""Drafts what followed the row's last tokens when they occurred before: in its prompt or its output, or in
earlier outputs of its tenant.

A text that repeats itself from its last p tokens on is drafted to repeat them on and on. A text in which
nothing has occurred before for 64 tokens is looked up at every other token, then at every third, and at every
eighth at last, until something is found.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagewire.internal.v1 import worker_pb2
from worker.speculation.drafter import Drafter, RowDrafter
from worker.step.rows import RowTable

LONG, SHORT = 4, 2
"""Tokens of the runs that are looked up."""
MOST_TOKENS = 32_768
"""Tokens that are indexed of a text when it is met: its end. Their tables take some 16 MB."""

REST_BEGINS = 64
"""Tokens without a match behind each of which lookups are one token farther apart."""
MOST_SKIPPED = 7
"""Tokens between two lookups."""
RUN = 4
"""Tokens that are looked up in outputs of a tenant."""
MAX_TENANTS = 64
"""Whose outputs are kept; then those of the one that has been idle for longest go."""

Read = Callable[[int, int], Sequence[int]]
"""Returns the tokens of a text from one position to another."""


class NgramIndex:
    """Where the last tokens of a growing text occurred before, in O(1) per token.

        text     a b c d x y z ... a b c d
        match            ^         the place behind the earlier occurrence of what the text ends with
        again              ^       x follows here too: the match moves on, and is one token longer

    Two tables hold the place behind the latest occurrence of each run of 4 and of 2 tokens. They are asked
    where no match goes on, the longer runs first; a match that goes on is kept once it is as long as the
    longer runs.
    """

    def __init__(self) -> None:
        self._tables: dict[int, dict[tuple[int, ...], int]] = {LONG: {}, SHORT: {}}
        self._end = 0  # tokens that were taken
        self._tail: tuple[int, ...] = ()  # the last of these, at most LONG
        self._match = 0  # 0: none
        self._length = 0  # of the match, at least

    def extend(self, end: int, read: Read) -> None:
        """Takes the text up to its token `end`, which is not taken itself."""
        if end == self._end:
            return
        if end == self._end + 1 and self._end >= LONG:
            self._take_one(read(self._end, end), read)
            return
        first = max(self._end, end - MOST_TOKENS)
        start = max(0, first - LONG)
        tokens = read(start, end)
        if self._match:
            self._follow(tokens[first - start :], read)
        for size, table in self._tables.items():
            begin = max(start, first - size)  # the run from here on ends before the first new token, or at 0
            runs = zip(*(tokens[begin - start + i :] for i in range(size)), strict=False)
            table.update(zip(runs, range(begin + size, end), strict=False))
        self._end, self._tail = end, tuple(tokens[-LONG:])

    def find(self) -> int:
        """Returns the place behind the longest known run that the text ends with; 0: it has not occurred
        before."""
        if self._length < LONG:
            for size, table in self._tables.items():
                found = table.get(self._tail[-size:]) if size > self._length else None
                if found is not None:
                    self._match, self._length = found, size
                    break
        return self._match

    def _take_one(self, new: Sequence[int], read: Read) -> None:
        """Takes one token of a text that has LONG others, as most steps sample one."""
        for size, table in self._tables.items():
            table[self._tail[-size:]] = self._end
        if self._match:
            self._follow(new, read)
        self._end, self._tail = self._end + 1, (*self._tail[1:], *new)

    def _follow(self, new: Sequence[int], read: Read) -> None:
        """Moves the match over new tokens as long as they are those behind it."""
        expected = read(self._match, self._match + len(new))
        if list(expected) == list(new):
            self._match, self._length = self._match + len(new), self._length + len(new)
        else:
            self._match = self._length = 0


@dataclass(slots=True)
class _Text:
    index: NgramIndex
    read: Read
    found_at: int  # tokens of the text at the last match; at first, when it was first looked up
    looks_at: int = 0  # tokens of the text from which on it is looked up


class LookupDrafter(Drafter):
    """Looks up in each row's own text, which is indexed when it is drafted for."""

    def __init__(self, rows: RowTable) -> None:
        self._rows = rows
        self._texts: dict[int, _Text] = {}

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        return [self._look_up(row, length) for row, length in zip(rows, most, strict=True)]

    def remove_row(self, row: int) -> None:
        self._texts.pop(row, None)

    def _look_up(self, row: int, most: int) -> list[int]:
        end = int(self._rows.num_tokens[row])
        text = self._texts.get(row) or self._begin(row, end)
        if end < text.looks_at:
            return []
        text.index.extend(end, text.read)
        found = text.index.find()
        if not found:
            text.looks_at = end + 1 + min(MOST_SKIPPED, (end - text.found_at) // REST_BEGINS)
            return []
        text.found_at = end
        drafted = list(text.read(found, min(found + most, end)))
        while len(drafted) < most:
            drafted += drafted[: most - len(drafted)]
        return drafted

    def _begin(self, row: int, end: int) -> _Text:
        token_ids = self._rows.token_ids[row]

        def read(start: int, stop: int) -> Sequence[int]:
            tokens: list[int] = token_ids[start:stop].tolist()
            return tokens

        text = self._texts[row] = _Text(NgramIndex(), read, found_at=end)
        return text


class _Outputs:
    """Outputs that are kept together."""

    def __init__(self) -> None:
        self.tokens = array("q")
        self._places: dict[tuple[int, ...], int] = {}

    def add(self, output: Sequence[int]) -> None:
        """Appends an output."""
        begin = len(self.tokens)
        self.tokens.extend(output)
        runs = zip(*(output[i:] for i in range(RUN)), strict=False)
        self._places.update(zip(runs, range(begin + RUN, len(self.tokens)), strict=False))

    def follow(self, run: tuple[int, ...], most: int) -> list[int]:
        """Returns up to so many tokens that followed the run; none: it is not known."""
        place = self._places.get(run)
        return self.tokens[place : place + most].tolist() if place is not None else []


class SharedTexts:
    """Outputs of one tenant, and what followed a run of tokens in them: bounded memory, O(1) per token.

    Outputs stand one behind the other. A table holds the place behind the latest occurrence of each run of 4
    tokens; runs across two outputs are left out. There are two such texts: once the young one is half of what
    may be kept, it becomes the old one, and the old one is gone. Runs are looked for in the young one first.
    """

    def __init__(self, most: int) -> None:
        """most: tokens that are kept; tables of some hundred bytes per token come with them."""
        self._half = max(1, most // 2)
        self._young, self._old = _Outputs(), _Outputs()

    @property
    def num_tokens(self) -> int:
        """Tokens that are kept."""
        return len(self._young.tokens) + len(self._old.tokens)

    def add(self, output: Sequence[int]) -> None:
        """Keeps an output, of a long one its end."""
        output = output[-self._half :]
        if len(self._young.tokens) + len(output) > self._half:
            self._young, self._old = _Outputs(), self._young
        self._young.add(output)

    def follow(self, run: tuple[int, ...], most: int) -> list[int]:
        """Returns up to so many tokens that followed a run of RUN tokens; none: it is not known."""
        return self._young.follow(run, most) or self._old.follow(run, most)


class SharedLookupDrafter(RowDrafter):
    """Drafts what followed the row's last tokens in earlier outputs of the same tenant.

    An agent that writes the same file again, or an extraction with the same names, repeats other requests
    rather than itself. Tenants never share: how long an answer takes would tell one what another one wrote.
    """

    def __init__(self, rows: RowTable, most: int) -> None:
        """most: tokens that are kept of each tenant."""
        self._rows, self._most = rows, most
        self._tenants: dict[int, str] = {}  # by row
        self._texts: OrderedDict[str, SharedTexts] = OrderedDict()

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        self._tenants[row] = new.tenant

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        self._tenants[row] = self._tenants[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row, and keeps its output: the tokens up to the last one that was sampled."""
        tenant = self._tenants.pop(row, None)
        if tenant is None:
            return
        first, end = int(self._rows.prompt_lens[row]), int(self._rows.num_computed[row]) + 1
        if end - first <= RUN:
            return
        texts = self._texts.setdefault(tenant, SharedTexts(self._most))
        texts.add(self._rows.token_ids[row, first:end].tolist())
        self._texts.move_to_end(tenant)
        if len(self._texts) > MAX_TENANTS:
            self._texts.popitem(last=False)

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        return [self._look_up(row, length) for row, length in zip(rows, most, strict=True)]

    def _look_up(self, row: int, most: int) -> list[int]:
        texts, end = self._texts.get(self._tenants.get(row, "")), int(self._rows.num_tokens[row])
        if texts is None or end < RUN:
            return []
        return texts.follow(tuple(self._rows.token_ids[row, end - RUN : end].tolist()), most)
