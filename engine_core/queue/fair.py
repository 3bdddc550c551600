"""The fair waiting queue: by class, then by the tenant that was served least, then by deadline and arrival.

Waiting sequences are ordered by

    (priority of the request, counter of its tenant, due time, turn)

where turns count up with arrivals; a sequence whose turn had come before gets a turn below all others, and is
ahead of all that is due. A request is due at its deadline, or a minute after its arrival if that is sooner.
Counters grow with every step (token_counters.py), so the order of the whole queue is not kept. Each class has
a heap of its tenants' lines by (counter, due time and turn of the first sequence), in which an entry may be
too small but never too large: the top is updated until it is right. That moves only tenants that have run
since, each once a step, in O(log tenants); the order within a line never changes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from engine_core.errors import InvariantError
from engine_core.queue.base import LOOK_AHEAD, Ahead, Share, WaitingQueue, check_counts, rows_of
from engine_core.queue.token_counters import EQUAL, Tenant, Tenants, Weights
from engine_core.request import Request, Sequence

_COMPACT_ABOVE = 64
_SAMPLED_LINES = 32
"""Lines that ahead(), an estimate, looks at; where more tenants wait, these stand for all."""

_SAMPLED_SEQUENCES = 1000
"""Sequences of a line that ahead() looks at; where there are more, these stand for all."""

_PATIENCE_S = 60.0
"""Seconds from its arrival after which a request without an earlier deadline is due: it does not wait for
all deadlines that come after it."""

_Entry = tuple[float, float, int, "_Line"]


@dataclass(slots=True, eq=False)
class _Line:
    """The sequences of one tenant in one class, in order of turns. Never empty."""

    tenant: Tenant
    entries: OrderedDict[Sequence, tuple[int, int, int]] = field(default_factory=OrderedDict)
    """Turn of each sequence, the tokens to compute for it, and the rows that it and its siblings take."""
    num_tokens: int = 0  # to compute for all of them
    num_rows: int = 0  # that all of them take
    entry: _Entry | None = None  # its valid entry in the heap
    due: list[tuple[float, int, Sequence]] = field(default_factory=list)
    """A heap: when its sequences are due, and their turns; with some that have left."""

    def add(self, sequence: Sequence, turn: int, num_tokens: int, num_rows: int) -> None:
        """Adds a sequence. A turn below 0 comes before all others."""
        self.entries[sequence] = turn, num_tokens, num_rows
        self.num_tokens += num_tokens
        self.num_rows += num_rows
        if turn < 0:
            self.entries.move_to_end(sequence, last=False)
            return
        if len(self.due) > _COMPACT_ABOVE + 2 * len(self.entries):
            self.due = [entry for entry in self.due if self._has(entry)]
            heapq.heapify(self.due)
        heapq.heappush(self.due, (_due(sequence.request), turn, sequence))

    def first(self) -> tuple[float, int, Sequence]:
        """Returns when the sequence that is next is due, its turn, and itself."""
        sequence, (turn, *_) = next(iter(self.entries.items()))
        if turn < 0:
            return -inf, turn, sequence
        while not self._has(self.due[0]):
            heapq.heappop(self.due)
        return self.due[0]

    def _has(self, entry: tuple[float, int, Sequence]) -> bool:
        _, turn, sequence = entry
        return sequence in self.entries and self.entries[sequence][0] == turn

    @property
    def all(self) -> Ahead:
        """The whole line."""
        return Ahead(self.num_rows, self.num_tokens)

    def before(self, sequence: Sequence) -> Ahead:
        """Returns what comes before one of its sequences; in a long line some sequences stand for all."""
        stride = 1 + len(self.entries) // _SAMPLED_SEQUENCES
        own, num_rows, num_tokens = _place(sequence, self.entries[sequence][0]), 0, 0
        for other, (turn, tokens, rows) in islice(self.entries.items(), 0, None, stride):
            if _place(other, turn) < own:
                num_rows += rows
                num_tokens += tokens
        return Ahead(stride * num_rows, stride * num_tokens)

    def cost(self, mean_output: float, part: Ahead | None = None) -> float:
        """Returns what serving the line, or a part of it, will add to its tenant's counter."""
        tenant, (rows, tokens) = self.tenant, part or self.all
        return tokens * tenant.prompt_cost + rows * mean_output * tenant.output_cost


class _Class:
    """The lines of one priority class."""

    def __init__(self, tenants: Tenants) -> None:
        self.lines: dict[str, _Line] = {}
        self._tenants = tenants
        self._heap: list[_Entry] = []

    def first(self) -> _Line:
        """Returns the line that is next. There must be one."""
        if len(self.lines) == 1:
            return next(iter(self.lines.values()))
        heap = self._heap
        while True:
            line = heap[0][-1]
            if line.entry is not heap[0]:  # outdated: the line has a smaller entry, or none
                heapq.heappop(heap)
                continue
            entry = self._entry(line)
            if entry == line.entry:
                return line
            line.entry = entry
            heapq.heapreplace(heap, entry)

    def next_lines(self) -> list[_Line]:
        """Returns lines in their order; where there are many, the first one and some others."""
        return sorted({self.first(), *islice(self.lines.values(), _SAMPLED_LINES)}, key=self._entry)

    def move_up(self, line: _Line) -> None:
        """Updates the heap for a line that is new, or whose entry may have become smaller."""
        entry = self._entry(line)
        if line.entry is not None and line.entry <= entry:
            return
        if len(self._heap) > _COMPACT_ABOVE + 2 * len(self.lines):
            self._heap = [entry for entry in self._heap if entry[-1].entry is entry]
            heapq.heapify(self._heap)
        line.entry = entry
        heapq.heappush(self._heap, entry)

    def _entry(self, line: _Line) -> _Entry:
        due, turn, _ = line.first()
        return self._tenants.counter(line.tenant), due, turn, line

    def check_invariants(self) -> None:
        """Raises InvariantError if a line could miss its turn."""
        for line in self.lines.values():
            if not line.entries or line.entry is None or line.entry > self._entry(line):
                raise InvariantError("a line is empty, or its entry is too large")
            if not any(entry is line.entry for entry in self._heap):
                raise InvariantError("a line is not in the heap")
            if line.num_tokens != sum(tokens for _, tokens, _ in line.entries.values()):
                raise InvariantError("the tokens of a line are not those of its sequences")
            if line.num_rows != sum(rows for *_, rows in line.entries.values()):
                raise InvariantError("the rows of a line are not those of its sequences")
        if not self.lines:
            raise InvariantError("a class without lines is kept")


class FairQueue(WaitingQueue):
    """A queue by class, tenant's counter and turn.

    With one class and one tenant this is first come, first served.
    """

    def __init__(self, weights: Weights = EQUAL) -> None:
        self.tenants = Tenants(weights)
        self._classes: dict[int, _Class] = {}  # none is empty
        self._priorities: list[int] = []  # of the classes, sorted
        self._num_sequences = 0
        self._next_turn = 0
        self._next_first_turn = -1
        self._last: dict[int, Tenant] = {}  # by class: the tenant whose line was the last to end

    def __len__(self) -> int:
        return self._num_sequences

    def __iter__(self) -> Iterator[Sequence]:
        for class_ in self._classes.values():
            for line in class_.lines.values():
                yield from line.entries

    def head(self) -> Sequence | None:
        if not self._priorities:
            return None
        return self._classes[self._priorities[0]].first().first()[-1]

    def look_ahead(self) -> Iterator[Sequence]:
        for priority in self._priorities:
            for line in self._classes[priority].next_lines():
                yield from islice(line.entries, LOOK_AHEAD)

    def add(self, sequence: Sequence, num_cached_tokens: int) -> None:
        request = sequence.request
        if request.tenant_weight:
            self.tenants.reweigh(request.tenant, request.tenant_weight)
        line = self._line(sequence)
        self._put(line, sequence, self._next_turn, num_cached_tokens)
        self._next_turn += 1
        self._classes[request.priority].move_up(line)

    def add_front(self, sequence: Sequence, num_cached_tokens: int) -> None:
        line = self._line(sequence)
        self._put(line, sequence, self._next_first_turn, num_cached_tokens)
        self._next_first_turn -= 1
        self._classes[sequence.request.priority].move_up(line)

    def remove(self, sequence: Sequence) -> None:
        request = sequence.request
        line = self._classes[request.priority].lines[request.tenant]
        _, tokens, rows = line.entries.pop(sequence)
        line.num_tokens -= tokens
        line.num_rows -= rows
        self.num_tokens -= tokens
        self._num_sequences -= 1
        if not line.entries:
            self._end_line(line, request.priority)

    def started(self, sequence: Sequence) -> None:
        self.tenants.start(sequence)

    def stopped(self, sequence: Sequence) -> None:
        tenant = self.tenants.stop(sequence)  # whose counter may have become smaller
        for priority in tenant.classes:
            class_ = self._classes[priority]
            class_.move_up(class_.lines[tenant.name])

    def step(self) -> None:
        self.tenants.step()

    def ahead(self, request: Request, mean_output: float, waiting: Sequence | None = None) -> Ahead:
        """Returns all of better classes, of its tenant's own line what comes before it, and of other tenants
        as much as raises their counters to what its own will be then."""
        sequences = tokens = 0.0
        for priority in self._priorities[: bisect_left(self._priorities, request.priority)]:
            for line, share in _sample(self._classes[priority].lines):
                sequences += share * line.num_rows
                tokens += share * line.num_tokens
        class_ = self._classes.get(request.priority)
        if class_ is None:
            return Ahead(sequences, tokens)
        counter = self.tenants.counter
        own = class_.lines.get(request.tenant)
        if own is None:
            reach = self.tenants.counter_on_arrival(request.tenant, self._least(request.priority))
        else:
            part = own.all if waiting is None else own.before(waiting)
            sequences += part.sequences
            tokens += part.tokens
            reach = counter(own.tenant) + own.cost(mean_output, part)
        for line, share in _sample(class_.lines):
            if line is not own:
                served = share * _part(reach - counter(line.tenant), line.cost(mean_output))
                sequences += served * line.num_rows
                tokens += served * line.num_tokens
        return Ahead(sequences, tokens)

    def share(self, tenant: str) -> Share:
        lines = [self._classes[priority].lines[tenant] for priority in self.tenants.classes_of(tenant)]
        sequences, tokens = sum(len(line.entries) for line in lines), sum(line.num_tokens for line in lines)
        return Share(self.tenants.share(tenant), sequences, tokens)

    def share_beside(self, tenant: str, running: Collection[str]) -> float:
        return self.tenants.share_beside(tenant, running)

    def claim(self, prompt: Sequence) -> float:
        """Returns what the tenants that wait may take from another's prompt of their class, by their weights;
        all from one of a worse class, and nothing from one of a better class or of the head's own tenant."""
        head, running = self.head(), prompt.request
        if head is None or head.request.priority > running.priority:
            return 0.0
        if head.request.priority < running.priority:
            return 1.0
        return 0.0 if head.request.tenant == running.tenant else 1.0 - self.tenants.share(running.tenant)

    def check_invariants(self, num_running: int) -> None:
        self.tenants.check_invariants(num_running)
        if self._priorities != sorted(self._classes):
            raise InvariantError("the sorted priorities are not those of the classes")
        for class_ in self._classes.values():
            class_.check_invariants()
        lines = [line for class_ in self._classes.values() for line in class_.lines.values()]
        uncached = {s: tokens for line in lines for s, (_, tokens, _) in line.entries.items()}
        check_counts(uncached, self.num_tokens)
        if self._num_sequences != sum(len(line.entries) for line in lines):
            raise InvariantError("the number of waiting sequences is wrong")
        if sum(len(line.tenant.classes) for line in lines) < len(lines):
            raise InvariantError("a tenant waits in a class that it does not know of")

    def _line(self, sequence: Sequence) -> _Line:
        """Returns the line that a sequence belongs to; a new line has no entry in the heap."""
        request = sequence.request
        class_ = self._classes.get(request.priority)
        line = class_.lines.get(request.tenant) if class_ is not None else None
        if line is not None:
            return line
        tenant = self.tenants.find(request.tenant)
        self.tenants.begin_to_wait(tenant, request.priority, self._least(request.priority))
        if class_ is None:
            class_ = self._classes[request.priority] = _Class(self.tenants)
            insort(self._priorities, request.priority)
        line = class_.lines[request.tenant] = _Line(tenant)
        return line

    def _end_line(self, line: _Line, priority: int) -> None:
        """Removes a line that is empty."""
        class_ = self._classes[priority]
        del class_.lines[line.tenant.name]
        line.entry = None
        self._last[priority] = line.tenant
        self.tenants.end_to_wait(line.tenant, priority)
        if not class_.lines:
            del self._classes[priority]
            del self._priorities[bisect_left(self._priorities, priority)]

    def _least(self, priority: int) -> float:
        """Returns the smallest counter in a class; in an empty class, that of its last tenant."""
        class_, last = self._classes.get(priority), self._last.get(priority)
        if class_ is not None:
            return self.tenants.counter(class_.first().tenant)
        return self.tenants.counter(last) if last is not None else 0.0

    def _put(self, line: _Line, sequence: Sequence, turn: int, num_cached_tokens: int) -> None:
        uncached = sequence.num_tokens - num_cached_tokens
        line.add(sequence, turn, uncached, rows_of(sequence))
        self.num_tokens += uncached
        self._num_sequences += 1


def _place(sequence: Sequence, turn: int) -> tuple[float, int]:
    """Returns what the sequences of a line are ordered by."""
    return (-inf if turn < 0 else _due(sequence.request)), turn


def _due(request: Request) -> float:
    """Returns when a request that begins to wait is due, on the clock of its arrival."""
    late = request.arrival + _PATIENCE_S
    return late if request.deadline_at is None else min(request.deadline_at, late)


def _part(distance: float, cost: float) -> float:
    """Returns the fraction of a line that is served before its tenant's counter has grown by `distance`.

    The cost is 0 where prompts are free and the length of outputs is not known yet.
    """
    if cost <= distance:
        return 1.0
    return distance / cost if distance > 0 else 0.0


def _sample(lines: dict[str, _Line]) -> Iterator[tuple[_Line, float]]:
    """Yields some of the lines, each with the number of lines that it stands for."""
    share = max(len(lines) / _SAMPLED_LINES, 1.0)
    return ((line, share) for line in islice(lines.values(), _SAMPLED_LINES))
