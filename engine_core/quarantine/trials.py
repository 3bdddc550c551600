"""Suspects in this life of the engine: who may run, until when, and what is noted for the next life.

    arrives as a suspect ──> waits for its trial ──> on trial, with its group ──> acquitted: like everybody
                                                              └──> the engine dies: see suspects.py

While somebody waits for a trial or is on one, nobody else begins. Trials take the steps of the prompts that
have to be computed anyway and a few more, so that costs others little; and so it is those on trial who are to
blame if the engine dies, and a request that comes in that moment can neither take the blame nor put it on
them. Whoever was acquitted goes on beside them.

A group is acquitted when each of its requests is past the tokens at which the engine died: a new token of
each of its sequences has come, and one has got further than the death. It shall be tried alone where only one
is to blame: so the trial for the last death is the first in a new life, and is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine_core.errors import InvariantError
from engine_core.quarantine.blame import Suspect, release
from engine_core.quarantine.crash_journal import CrashJournal, next_journal
from engine_core.queue.base import WaitingQueue
from engine_core.request import FinishReason, Request, Sequence, Status

PATIENCE = 0.3
"""Seconds that a new engine waits for the suspects of the last death, from its first event on. They are sent
again before anything else, by frontends that are connected: it takes milliseconds. (A client that left
meanwhile costs the others this much.)"""
NAP = 0.005
"""Seconds that a core which waits so may sleep before it looks for messages again."""
_ALL = (1 << 32) - 1


class Probation:
    """Knows the suspects, and notes who is in which step. One for each scheduler."""

    def __init__(self, num_rows: int) -> None:
        """num_rows: sequences that run at once."""
        self._page = CrashJournal(next_journal(b"", num_rows))
        self._free = list(range(self._page.num_members))
        self._places: dict[Request, int] = {}  # who runs -> his place on the page
        self._news: dict[Request, int] = {}  # since the last note: it computes so many tokens at once
        self._leaving: deque[tuple[int, int, Request]] = deque()  # last step, which may be under way; place
        self._step = 0  # the last one that was noted
        # Of suspects.
        self._absent: set[int] = set()  # keys
        self._present: dict[Request, _Case] = {}  # in the order of their arrival
        self._on_trial: list[Request] = []
        self._wait_until: float | None = None  # None: nothing has happened yet

    def open(self, page: CrashJournal) -> None:
        """Goes on with what the last engine has left behind. Call it before anything else."""
        assert not self._places and not self._present
        self._page = page
        self._free = list(range(page.num_members))
        self._absent = {*page.suspects}

    def leave(self) -> None:
        """The engine is dead: what happens to requests from here on is no news for the next one."""
        self._page.leave()

    @property
    def num_suspects(self) -> int:
        """That are known, here or not."""
        return len(self._page.suspects)

    def refuses(self, key: int) -> bool:
        """Whether a request that arrives is guilty: it must be told so, and does not come in."""
        suspect = self._page.suspects.get(key)
        if suspect is None or not suspect.is_guilty:
            return False
        self._absent.discard(key)
        self._page.change_suspect(key, release(suspect))
        return True

    # Requests come and go.

    def arrived(self, request: Request) -> None:
        """A request arrives."""
        suspect = self._page.suspects.get(request.key)
        if suspect is not None:
            self._absent.discard(request.key)
            self._present[request] = _Case(request, suspect)

    def started(self, request: Request) -> None:
        """The first of its sequences gets a row."""
        self._places[request] = self._free.pop()
        self._news[request] = _ALL

    def stopped(self, request: Request) -> None:
        """The last of its sequences that had a row loses it."""
        self._leaving.append((self._step, self._places.pop(request), request))
        self._news.pop(request, None)

    def ended(self, request: Request) -> None:
        """It is over, and will not come again: nobody needs to know that it was there. A suspect who was not
        acquitted stays one, unless it came to its natural end."""
        if self._leaving and self._leaving[-1][2] is request:
            self._page.clear_member(self._leaving[-1][1])
        if request in self._present:
            del self._present[request]
            self._on_trial = [other for other in self._on_trial if other is not request]
            if _has_finished(request):
                self._page.clear_suspect(request.key)

    # Steps.

    def review(self, now: float) -> None:
        """A step is about to be planned: acquits whoever has come through."""
        if self._wait_until is None:
            self._wait_until = now + PATIENCE
        if self._on_trial and all(self._present[request].is_past for request in self._on_trial):
            for request in self._on_trial:
                del self._present[request]
                self._page.clear_suspect(request.key)
            self._on_trial = []
        if self._absent and now >= self._wait_until:
            self._forget_absent()

    def head(self, queue: WaitingQueue) -> Sequence | None:
        """Whose turn it is, of those that wait."""
        if not self._present and not (self._absent and self.waits):
            return queue.head()
        if not self._on_trial and not self.waits:
            self._on_trial = self._next_group()
        return _first_waiting(self._on_trial)

    @property
    def waits(self) -> bool:
        """Whether nobody may begin, as suspects of the last death are still to come."""
        return any(self._page.suspects[key].death == self._page.num_deaths for key in self._absent)

    def computes(self, sequence: Sequence, count: int) -> None:
        """A sequence that runs has so many tokens in the plan that is being made."""
        if count > 1:
            self._news[sequence.request] = max(count, self._news.get(sequence.request, 0))

    def note(self, step: int, oldest: int) -> None:
        """A plan was made, and is about to be submitted. oldest: the first step that is under way."""
        self._step = step
        self._clear_before(oldest)
        for request, count in self._news.items():
            end = max(sequence.num_computed_tokens for sequence in request.sequences)
            self._page.write_member(self._places[request], request.key, step, end, min(count, end))
        self._news.clear()
        self._page.write_step(step)

    def at_rest(self) -> None:
        """No step is under way."""
        self._clear_before(self._step + 1)

    def check_invariants(self, running: Iterable[Request]) -> None:
        """Raises InvariantError unless those that run are noted, and suspects known."""
        if set(running) != self._places.keys():
            raise InvariantError("those who run are not those who are noted")
        places = [*self._places.values(), *(place for _, place, _ in self._leaving), *self._free]
        if sorted(places) != list(range(self._page.num_members)):
            raise InvariantError("a place on the note page is lost, or has two owners")
        if not {request.key for request in self._present} | self._absent <= self._page.suspects.keys():
            raise InvariantError("somebody is tried who is no suspect")
        if any(not request.num_live for request in self._present):
            raise InvariantError("a request that has ended is on trial")

    def _clear_before(self, step: int) -> None:
        while self._leaving and self._leaving[0][0] < step:
            _, place, _ = self._leaving.popleft()
            self._page.clear_member(place)
            self._free.append(place)

    def _next_group(self) -> list[Request]:
        """Those of the last death first, so that they run alone; of one death, in order of arrival."""
        if not self._present:
            return []
        cases = list(self._present.values())
        death = max(case.suspect.death for case in cases)
        group = [case for case in cases if case.suspect.death == death]
        return [case.request for case in group[: group[0].suspect.group]]

    def _forget_absent(self) -> None:
        """They did not come. Those of the last death may come late, and are waited for no more."""
        latest = self._page.num_deaths
        for key in self._absent:
            if self._page.suspects[key].death < latest:
                self._page.clear_suspect(key)
        self._absent = set()


class _Case:
    """A suspect that is here."""

    def __init__(self, request: Request, suspect: Suspect) -> None:
        self.request, self.suspect = request, suspect
        self._delivered = {sequence: len(sequence.output) for sequence in request.sequences}

    @property
    def is_past(self) -> bool:
        """Whether it has got further than the engine when it died."""
        live = [sequence for sequence in self._delivered if sequence.status is not Status.ENDED]
        if self.request.beams is None and any(len(each.output) <= self._delivered[each] for each in live):
            return False
        return max(sequence.num_known_tokens for sequence in live) > self.suspect.span.end


def _has_finished(request: Request) -> bool:
    """Whether it has come to an end of its own. (A search has no sequence that goes on, then.)"""
    beams = request.beams
    if beams is not None:
        return beams.search.done
    return all(sequence.finish()[0] is not FinishReason.NONE for sequence in request.sequences)


def _first_waiting(requests: list[Request]) -> Sequence | None:
    for request in requests:
        for sequence in request.sequences:
            if sequence.status is Status.WAITING:
                return sequence
    return None
