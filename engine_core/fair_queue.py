"""The fair waiting queue: class, then the tenant that was given least, then arrival.

The order of all that wait is by

    (priority of the request, counter of its tenant, turn)

where a turn is a number that grows with arrival; who had his turn before gets one below all others.
Counters grow with every step (tenants.py), so no order of the whole queue is kept. Each class has a heap
of its tenants' lines by (counter, turn of the first), in which an entry may be too small but never too
large: the top is put right until it is right. That moves only tenants that have run since, each once a
step, in O(log tenants); a line itself never moves.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from engine_core.block_pool import InvariantError
from engine_core.request import Request, Sequence
from engine_core.tenants import EQUAL, Tenant, Tenants, Weights
from engine_core.waiting import Ahead, check_counts

_COMPACT_ABOVE = 64
_LINES_LOOKED_AT = 32
"""By ahead(), which asks for an estimate; where more tenants wait, these stand for all."""


class _Place(NamedTuple):
    turn: int
    num_tokens: int  # to compute


_Entry = tuple[float, int, "_Line"]


@dataclass(slots=True, eq=False)
class _Line:
    """What waits of one tenant in one class, in order of turns. Never empty."""

    tenant: Tenant
    places: OrderedDict[Sequence, _Place] = field(default_factory=OrderedDict)
    num_tokens: int = 0
    entry: _Entry | None = None  # the one in the heap that counts


class _Class:
    """The lines of one priority class."""

    def __init__(self, tenants: Tenants) -> None:
        self.lines: dict[str, _Line] = {}
        self.num_sequences = 0
        self.num_tokens = 0
        self._tenants = tenants
        self._heap: list[_Entry] = []

    def first(self) -> _Line:
        """The line whose turn it is. There is one."""
        heap = self._heap
        while True:
            line = heap[0][2]
            if line.entry is not heap[0]:  # of a line that has a smaller one, or is gone
                heapq.heappop(heap)
                continue
            entry = self._entry(line)
            if entry == line.entry:
                return line
            line.entry = entry
            heapq.heapreplace(heap, entry)

    def move_up(self, line: _Line) -> None:
        """The line is new, or may have become smaller."""
        entry = self._entry(line)
        if line.entry is not None and line.entry <= entry:
            return
        if len(self._heap) > _COMPACT_ABOVE + 2 * len(self.lines):
            self._heap = [entry for entry in self._heap if entry[2].entry is entry]
            heapq.heapify(self._heap)
        line.entry = entry
        heapq.heappush(self._heap, entry)

    def _entry(self, line: _Line) -> _Entry:
        turn = next(iter(line.places.values())).turn
        return self._tenants.counter(line.tenant), turn, line

    def check_invariants(self) -> None:
        """Raises InvariantError when a line could miss its turn."""
        for line in self.lines.values():
            if not line.places or line.entry is None or line.entry > self._entry(line):
                raise InvariantError("a line is empty, or stands too far back")
            if not any(entry is line.entry for entry in self._heap):
                raise InvariantError("a line is not in the heap")
            if line.num_tokens != sum(place.num_tokens for place in line.places.values()):
                raise InvariantError("the tokens of a line are not those of its sequences")
        if self.num_tokens != sum(line.num_tokens for line in self.lines.values()):
            raise InvariantError("the tokens of a class are not those of its lines")
        if self.num_sequences != sum(len(line.places) for line in self.lines.values()) or not self.lines:
            raise InvariantError("the sequences of a class are not those of its lines, or there are none")


class FairQueue:
    """Sequences that wait, by class, tenant's counter and turn. With one class and one tenant this is
    first come, first served."""

    def __init__(self, weights: Weights = EQUAL) -> None:
        self.num_tokens = 0
        self.tenants = Tenants(weights)
        self._classes: dict[int, _Class] = {}  # none is empty
        self._priorities: list[int] = []  # of the classes, sorted
        self._num_sequences = 0
        self._next_turn = 0
        self._next_first_turn = -1
        self._last: dict[int, Tenant] = {}  # whose line was the last to end, in each class that there was

    def __len__(self) -> int:
        return self._num_sequences

    def __iter__(self) -> Iterator[Sequence]:
        for class_ in self._classes.values():
            for line in class_.lines.values():
                yield from line.places

    def head(self) -> Sequence | None:
        """The one whose turn it is."""
        if not self._priorities:
            return None
        return next(iter(self._classes[self._priorities[0]].first().places))

    def add(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """A sequence arrives."""
        line, is_new = self._line(sequence)
        self._put(line, sequence, self._next_turn, num_cached_tokens)
        self._next_turn += 1
        if is_new:
            self._classes[sequence.request.priority].move_up(line)

    def add_front(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """A sequence that had its turn already comes back: before its equals."""
        line, _ = self._line(sequence)
        self._put(line, sequence, self._next_first_turn, num_cached_tokens)
        self._next_first_turn -= 1
        line.places.move_to_end(sequence, last=False)
        self._classes[sequence.request.priority].move_up(line)

    def remove(self, sequence: Sequence) -> None:
        """A sequence is admitted or has ended."""
        priority = sequence.request.priority
        class_ = self._classes[priority]
        line = class_.lines[sequence.request.tenant]
        self._count(class_, line, -1, -line.places.pop(sequence).num_tokens)
        if line.places:
            return
        del class_.lines[line.tenant.name]
        line.entry = None
        self._last[priority] = line.tenant
        self.tenants.end_to_wait(line.tenant, priority)
        if not class_.lines:
            del self._classes[priority]
            del self._priorities[bisect_left(self._priorities, priority)]

    def started(self, sequence: Sequence) -> None:
        """A sequence begins to run."""
        self.tenants.start(sequence)

    def stopped(self, sequence: Sequence) -> None:
        """A sequence runs no longer. Its tenant's counter may turn out to be smaller."""
        tenant = self.tenants.stop(sequence)
        for priority in tenant.classes:
            class_ = self._classes[priority]
            class_.move_up(class_.lines[tenant.name])

    def step(self) -> None:
        """A step was planned: everybody who runs gets a token."""
        self.tenants.step()

    def ahead(self, request: Request, mean_output: float) -> Ahead:
        """What comes before a request if it arrives now: better classes, its tenant's own line, and of
        other tenants as much as brings their counters to where its own will be then."""
        better = [
            self._classes[p] for p in self._priorities[: bisect_left(self._priorities, request.priority)]
        ]
        sequences = float(sum(class_.num_sequences for class_ in better))
        tokens = float(sum(class_.num_tokens for class_ in better))
        class_ = self._classes.get(request.priority)
        if class_ is None:
            return Ahead(sequences, tokens)
        tenants = self.tenants
        own = class_.lines.get(request.tenant)
        if own is not None:
            sequences += len(own.places)
            tokens += own.num_tokens
            output = mean_output * len(own.places)
            reach = tenants.counter(own.tenant) + tenants.cost(own.num_tokens, output, own.tenant)
        else:
            reach = tenants.counter_on_arrival(request.tenant, self._least(request.priority))
        others = [line for line in islice(class_.lines.values(), _LINES_LOOKED_AT) if line is not own]
        scale = (len(class_.lines) - (own is not None)) / max(len(others), 1)
        for line in others:
            work = tenants.cost(line.num_tokens, mean_output * len(line.places), line.tenant)
            part = scale * min(max((reach - tenants.counter(line.tenant)) / work, 0.0), 1.0)
            sequences += part * len(line.places)
            tokens += part * line.num_tokens
        return Ahead(sequences, tokens)

    def check_invariants(self, num_running: int) -> None:
        """Raises InvariantError when the books do not balance. Cost: all that wait, all tenants."""
        self.tenants.check_invariants(num_running)
        if self._priorities != sorted(self._classes):
            raise InvariantError("the order of the classes is not that of the classes")
        for class_ in self._classes.values():
            class_.check_invariants()
        lines = [line for class_ in self._classes.values() for line in class_.lines.values()]
        check_counts(
            {s: place.num_tokens for line in lines for s, place in line.places.items()}, self.num_tokens
        )
        if self._num_sequences != sum(len(line.places) for line in lines):
            raise InvariantError("the number of those that wait is wrong")
        if sum(len(line.tenant.classes) for line in lines) < len(lines):
            raise InvariantError("a tenant waits in a class that it does not know of")

    def _line(self, sequence: Sequence) -> tuple[_Line, bool]:
        """The line that a sequence belongs to, and whether it is new."""
        request = sequence.request
        class_ = self._classes.get(request.priority)
        if class_ is None:
            class_ = self._classes[request.priority] = _Class(self.tenants)
            insort(self._priorities, request.priority)
        line = class_.lines.get(request.tenant)
        if line is not None:
            return line, False
        tenant = self.tenants.find(request.tenant)
        self.tenants.begin_to_wait(tenant, request.priority, self._least(request.priority))
        line = class_.lines[request.tenant] = _Line(tenant)
        return line, True

    def _least(self, priority: int) -> float:
        """The smallest counter of those that wait in a class; where nobody waits, that of the tenant
        whose line was the last to end."""
        class_, last = self._classes.get(priority), self._last.get(priority)
        if class_ is not None and class_.lines:
            return self.tenants.counter(class_.first().tenant)
        return self.tenants.counter(last) if last is not None else 0.0

    def _put(self, line: _Line, sequence: Sequence, turn: int, num_cached_tokens: int) -> None:
        uncached = sequence.num_tokens - num_cached_tokens
        line.places[sequence] = _Place(turn, uncached)
        self._count(self._classes[sequence.request.priority], line, 1, uncached)

    def _count(self, class_: _Class, line: _Line, sequences: int, tokens: int) -> None:
        line.num_tokens += tokens
        class_.num_tokens += tokens
        class_.num_sequences += sequences
        self.num_tokens += tokens
        self._num_sequences += sequences
