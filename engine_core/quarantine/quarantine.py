"""Suspects in this life of the engine: which may run and until when, and what is journaled for the next life.

    arrives as a suspect ──> waits for its isolated run ──> runs in its isolation group ──> cleared
              └──────────> is watched: runs at once, among all others ────────┴─────────────────┘
                                                                  └──> the engine dies: see blame.py

While a suspect waits or runs in isolation, no other request begins, also none that is watched. Isolated runs
last for the steps of prompts that have to be computed anyway and a few more, so they cost other requests
little; and if the engine dies, the isolation group is to blame: a request that arrives at that moment can
neither take the blame nor shift it. A cleared request runs on beside the next group.

A group is cleared when each of its requests is past the tokens at which the engine died: each of its
sequences has a new token, and one has got further than the death. A request that is watched is cleared by
itself. One that alone is to blame must run alone: so it comes first in a new life, and suspects of the last
death are waited for. Others take turns, and those that have waited the longest come first: where kills from
outside follow each other, no stream waits for those that ran in the life before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from engine_core.errors import InvariantError
from engine_core.quarantine.blame import Suspect, release
from engine_core.quarantine.crash_journal import CrashJournal, next_journal
from engine_core.queue.base import WaitingQueue
from engine_core.request import Request, Sequence, Status
from engine_core.step.plan import Plan

PATIENCE = 0.3
"""Seconds that a new engine waits for the suspects of the last death, from its first event on. Connected
frontends resubmit them before anything else, within milliseconds. (A suspect whose client has left costs the
others this much.)"""
IDLE_SLEEP_S = 0.005
"""Seconds that a core which waits for suspects may sleep before it looks for messages again."""


class Quarantine:
    """Knows the suspects, and journals which request is in which step. One for each scheduler."""

    def __init__(self, num_rows: int) -> None:
        """num_rows: sequences that run at once."""
        self._journal = CrashJournal(next_journal(b"", num_rows))
        self._rows: dict[Request, list[int]] = {}  # that a running request holds, or has held
        self._leaving: deque[tuple[int, Request, list[int]]] = deque()  # last step, which may be in flight
        self._step = 0  # the last one that was journaled
        # Suspects.
        self._missing: set[int] = set()  # keys that are not yet resubmitted
        self._present: dict[Request, _PresentSuspect] = {}  # to be isolated, in the order of their arrival
        self._watched: dict[Request, _PresentSuspect] = {}
        self._isolated: list[Request] = []
        self._wait_until: float | None = None  # None: before the first event

    def open(self, journal: CrashJournal) -> None:
        """Continues the journal of the engine before this one. To be called before anything else."""
        assert not self._rows and not self._present
        self._journal = journal
        self._missing = {*journal.suspects}

    def leave(self) -> None:
        """Closes the journal: the engine has died, and no request changes in it from here on."""
        self._journal.leave()

    @property
    def num_suspects(self) -> int:
        """Suspects that are known, resubmitted or not."""
        return len(self._journal.suspects)

    def refuses(self, key: int) -> bool:
        """Returns whether an arriving request is quarantined; its client must be told then."""
        suspect = self._journal.suspects.get(key)
        if suspect is None or not suspect.is_quarantined:
            return False
        self._missing.discard(key)
        self._journal.change_suspect(key, release(suspect))
        return True

    def is_to_be_isolated(self, key: int) -> bool:
        """Returns whether a request with this key is a suspect that has not been cleared, and is not only
        watched."""
        suspect = self._journal.suspects.get(key)
        return suspect is not None and not suspect.is_watched

    # Requests come and go.

    def arrived(self, request: Request) -> None:
        """Registers a request on arrival."""
        suspect = self._journal.suspects.get(request.key)
        if suspect is not None:
            self._missing.discard(request.key)
            among = self._watched if suspect.is_watched else self._present
            among[request] = _PresentSuspect(request, suspect)

    def admitted(self, request: Request, rows: Iterable[int]) -> None:
        """Registers that a request has got rows."""
        held = self._rows.setdefault(request, [])
        for row in rows:
            held.append(row)
            self._journal.assign_row(row, request.key)

    def stopped(self, request: Request) -> None:
        """Registers that the last of its sequences with a row has lost it."""
        self._leaving.append((self._step, request, self._rows.pop(request)))

    def ended(self, request: Request, is_finished: Callable[[], bool]) -> None:
        """Removes a request that has ended, and will not come again, from the journal.

        A suspect that was not cleared remains one, unless it has finished by itself (`is_finished`).
        """
        if self._leaving and self._leaving[-1][1] is request:
            self._journal.clear_rows(self._leaving[-1][2], request.key)
        if self._present.pop(request, None) or self._watched.pop(request, None):
            self._isolated = [other for other in self._isolated if other is not request]
            if is_finished():
                self._journal.clear_suspect(request.key)

    # Steps.

    def review(self, now: float) -> None:
        """Clears the isolation group if all of it is past its deaths, and those of the watched suspects that
        are. Called before a step is planned."""
        if self._wait_until is None:
            self._wait_until = now + PATIENCE
        if self._isolated and all(self._present[request].is_past for request in self._isolated):
            for request in self._isolated:
                del self._present[request]
                self._journal.clear_suspect(request.key)
            self._isolated = []
        for request in [request for request, watched in self._watched.items() if watched.is_past]:
            del self._watched[request]
            self._journal.clear_suspect(request.key)
        if self._missing and now >= self._wait_until:
            self._forget_missing()

    def head(self, queue: WaitingQueue) -> Sequence | None:
        """Returns the waiting sequence that may begin next."""
        if not self.isolates:
            return queue.head()
        if not self._isolated and not self.waits:
            self._isolated = self._next_group()
        return _first_waiting(self._isolated)

    @property
    def waits(self) -> bool:
        """Whether no request may begin because suspects of the last death, which are to be isolated, are not
        yet resubmitted."""
        missing = (self._journal.suspects[key] for key in self._missing)
        return any(each.death == self._journal.num_deaths and not each.is_watched for each in missing)

    @property
    def isolates(self) -> bool:
        """Whether suspects run, or are waited for, before any other request may begin."""
        return bool(self._present) or bool(self._missing and self.waits)

    def record(self, plan: Plan, oldest: int) -> None:
        """Journals a plan before it is submitted. oldest: the first step that is in flight."""
        self._step = plan.step
        self._clear_before(oldest)
        self._journal.write_step(plan)

    def at_rest(self) -> None:
        """Registers that no step is in flight."""
        self._clear_before(self._step + 1)

    def check_invariants(self, running: list[Sequence]) -> None:
        """Raises InvariantError unless running sequences are journaled, and present suspects known."""
        keys = {sequence.request: sequence.request.key for sequence in running}
        if keys.keys() != self._rows.keys():
            raise InvariantError("the running requests are not those in the journal")
        if any(self._journal.key_of(sequence.row) != sequence.request.key for sequence in running):
            raise InvariantError("a row of the journal does not have the key of its request")
        present = [*self._present, *self._watched]
        if not {request.key for request in present} | self._missing <= self._journal.suspects.keys():
            raise InvariantError("a request is isolated that is not a suspect")
        if any(not request.num_live for request in present):
            raise InvariantError("a request that has ended is isolated")

    def _clear_before(self, step: int) -> None:
        while self._leaving and self._leaving[0][0] < step:
            _, request, rows = self._leaving.popleft()
            held = self._rows.get(request, [])
            self._journal.clear_rows([row for row in rows if row not in held], request.key)

    def _next_group(self) -> list[Request]:
        """Returns suspects of one death, in order of arrival: of the last one that a request alone is blamed
        for, which must run before others are cleared; else of the one that is the longest ago."""
        present = self._present.values()
        group = [each for each in present if each.suspect.strikes]
        if group:
            death = max(each.suspect.death for each in group)
        else:
            group = [*present]
            death = min((each.suspect.death for each in group), default=0)
        group = [each for each in group if each.suspect.death == death]
        return [each.request for each in group[: group[0].suspect.group]] if group else []

    def _forget_missing(self) -> None:
        """Stops waiting. Suspects of the last death may still come; those of earlier ones are forgotten."""
        latest = self._journal.num_deaths
        for key in self._missing:
            if self._journal.suspects[key].death < latest:
                self._journal.clear_suspect(key)
        self._missing = set()


class _PresentSuspect:
    """A suspect that was resubmitted."""

    def __init__(self, request: Request, suspect: Suspect) -> None:
        self.request, self.suspect = request, suspect
        self._delivered = {sequence: len(sequence.output) for sequence in request.sequences}

    @property
    def is_past(self) -> bool:
        """Whether it has got further than it was when the engine died."""
        live = [sequence for sequence in self._delivered if sequence.status is not Status.ENDED]
        if not self.request.num_candidates and any(
            len(each.output) <= self._delivered[each] for each in live
        ):
            return False
        return max(sequence.num_known_tokens for sequence in live) > self.suspect.span.end


def _first_waiting(requests: list[Request]) -> Sequence | None:
    for request in requests:
        for sequence in request.sequences:
            if sequence.status is Status.WAITING:
                return sequence
    return None
