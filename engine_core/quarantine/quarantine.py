"""Suspects in this life of the engine: which may run and until when, and what is journaled for the next life.

    arrives as a suspect ──> waits for its isolated run ──> runs in its isolation group ──> cleared
                                                                  └──> the engine dies: see blame.py

While a suspect waits or runs in isolation, no other request begins. Isolated runs last for the steps of
prompts that have to be computed anyway and a few more, so they cost other requests little; and if the engine
dies, the isolation group is to blame: a request that arrives at that moment can neither take the blame nor
shift it. A cleared request runs on beside the next group.

A group is cleared when each of its requests is past the tokens at which the engine died: each of its
sequences has a new token, and one has got further than the death. A request that alone is to blame must run
alone: so the isolated runs for the last death come first in a new life, and are waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from engine_core.errors import InvariantError
from engine_core.quarantine.blame import Suspect, release
from engine_core.quarantine.crash_journal import CrashJournal, next_journal
from engine_core.queue.base import WaitingQueue
from engine_core.request import Request, Sequence, Status

PATIENCE = 0.3
"""Seconds that a new engine waits for the suspects of the last death, from its first event on. Connected
frontends resubmit them before anything else, within milliseconds. (A suspect whose client has left costs the
others this much.)"""
IDLE_SLEEP_S = 0.005
"""Seconds that a core which waits for suspects may sleep before it looks for messages again."""
_ALL = (1 << 32) - 1


class Quarantine:
    """Knows the suspects, and journals which request is in which step. One for each scheduler."""

    def __init__(self, num_rows: int) -> None:
        """num_rows: sequences that run at once."""
        self._journal = CrashJournal(next_journal(b"", num_rows))
        self._free = list(range(self._journal.num_members))
        self._slots: dict[Request, int] = {}  # of requests that run, in the journal
        self._changed: dict[Request, int] = {}  # since the last note(): tokens that it computes at once
        self._leaving: deque[tuple[int, int, Request]] = deque()  # last step, which may be in flight; slot
        self._step = 0  # the last one that was journaled
        # Suspects.
        self._missing: set[int] = set()  # keys that are not yet resubmitted
        self._present: dict[Request, _PresentSuspect] = {}  # in the order of their arrival
        self._isolated: list[Request] = []
        self._wait_until: float | None = None  # None: before the first event

    def open(self, journal: CrashJournal) -> None:
        """Continues the journal of the engine before this one. To be called before anything else."""
        assert not self._slots and not self._present
        self._journal = journal
        self._free = list(range(journal.num_members))
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

    # Requests come and go.

    def arrived(self, request: Request) -> None:
        """Registers a request on arrival."""
        suspect = self._journal.suspects.get(request.key)
        if suspect is not None:
            self._missing.discard(request.key)
            self._present[request] = _PresentSuspect(request, suspect)

    def started(self, request: Request) -> None:
        """Registers that the first of its sequences has got a row."""
        self._slots[request] = self._free.pop()
        self._changed[request] = _ALL

    def stopped(self, request: Request) -> None:
        """Registers that the last of its sequences with a row has lost it."""
        self._leaving.append((self._step, self._slots.pop(request), request))
        self._changed.pop(request, None)

    def ended(self, request: Request, is_finished: Callable[[], bool]) -> None:
        """Removes a request that has ended, and will not come again, from the journal.

        A suspect that was not cleared remains one, unless it has finished by itself (`is_finished`).
        """
        if self._leaving and self._leaving[-1][2] is request:
            self._journal.clear_member(self._leaving[-1][1])
        if request in self._present:
            del self._present[request]
            self._isolated = [other for other in self._isolated if other is not request]
            if is_finished():
                self._journal.clear_suspect(request.key)

    # Steps.

    def review(self, now: float) -> None:
        """Clears the isolation group if all of it is past its deaths. Called before a step is planned."""
        if self._wait_until is None:
            self._wait_until = now + PATIENCE
        if self._isolated and all(self._present[request].is_past for request in self._isolated):
            for request in self._isolated:
                del self._present[request]
                self._journal.clear_suspect(request.key)
            self._isolated = []
        if self._missing and now >= self._wait_until:
            self._forget_missing()

    def head(self, queue: WaitingQueue) -> Sequence | None:
        """Returns the waiting sequence that may begin next."""
        if not self._present and not (self._missing and self.waits):
            return queue.head()
        if not self._isolated and not self.waits:
            self._isolated = self._next_group()
        return _first_waiting(self._isolated)

    @property
    def waits(self) -> bool:
        """Whether no request may begin because suspects of the last death are not yet resubmitted."""
        return any(self._journal.suspects[key].death == self._journal.num_deaths for key in self._missing)

    def computes(self, sequence: Sequence, count: int) -> None:
        """Registers that a running sequence computes so many tokens in the plan that is being made."""
        if count > 1:
            self._changed[sequence.request] = max(count, self._changed.get(sequence.request, 0))

    def note(self, step: int, oldest: int) -> None:
        """Journals a plan before it is submitted. oldest: the first step that is in flight."""
        self._step = step
        self._clear_before(oldest)
        for request, count in self._changed.items():
            end = max(sequence.num_computed_tokens for sequence in request.sequences)
            self._journal.write_member(self._slots[request], request.key, step, end, min(count, end))
        self._changed.clear()
        self._journal.write_step(step)

    def at_rest(self) -> None:
        """Registers that no step is in flight."""
        self._clear_before(self._step + 1)

    def check_invariants(self, running: Iterable[Request]) -> None:
        """Raises InvariantError unless running requests are journaled, and present suspects known."""
        if set(running) != self._slots.keys():
            raise InvariantError("the running requests are not those in the journal")
        slots = [*self._slots.values(), *(slot for _, slot, _ in self._leaving), *self._free]
        if sorted(slots) != list(range(self._journal.num_members)):
            raise InvariantError("a slot of the journal is lost, or has two owners")
        if not {request.key for request in self._present} | self._missing <= self._journal.suspects.keys():
            raise InvariantError("a request is isolated that is not a suspect")
        if any(not request.num_live for request in self._present):
            raise InvariantError("a request that has ended is isolated")

    def _clear_before(self, step: int) -> None:
        while self._leaving and self._leaving[0][0] < step:
            _, slot, _ = self._leaving.popleft()
            self._journal.clear_member(slot)
            self._free.append(slot)

    def _next_group(self) -> list[Request]:
        """Returns suspects of the last death, in order of arrival: those run first, and alone."""
        if not self._present:
            return []
        present = list(self._present.values())
        death = max(each.suspect.death for each in present)
        group = [each for each in present if each.suspect.death == death]
        return [each.request for each in group[: group[0].suspect.group]]

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
