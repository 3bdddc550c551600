"""Slots of adapters (LoRA): no more run at once than a step of the worker has room for (--max-loras).

A sequence that waits begins if its adapter runs already, or takes a free slot. One that lacks a slot is
passed by those behind it, but none of them gets the slot for which it waits. That is the one which is free
first, because its rows end or because its turn does; its adapter begins no more sequences in the second half
of the turn. Where the turn ends first, its rows are preempted, and take their turn again in the same way.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain

from engine_core.errors import InvariantError
from engine_core.request import Sequence, Status
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import Plan
from pagewire.limits import MAX_ADAPTERS

TURN = 256
"""Steps for which an adapter keeps its slot while another one waits; more until each of its rows has got a
token."""


class AdapterSlots:
    """Chooses which sequence begins, and which adapter gives up its slot."""

    def __init__(self, states: SequenceStates, num_slots: int, turn: int = TURN) -> None:
        """num_slots: adapters that may run at once; 0: any number. turn: steps."""
        self._states, self.num_slots, self._turn = states, num_slots, turn
        self._since: dict[bytes, int] = {}  # adapters that run -> the step that began with them
        self._begun_at: dict[Sequence, int] = {}  # sequences that run with one -> their tokens at first
        self._last_run: OrderedDict[bytes, int] = OrderedDict()  # adapters that have run -> their last step
        self._claimant: Sequence | None = None  # gets the next slot
        self._draining = b""  # the adapter that begins no more sequences
        self._step = 0

    def head(self) -> Sequence | None:
        """Returns the sequence that is next to begin; None: none waits, or all lack a slot."""
        waiting, quarantine = self._states.waiting, self._states.quarantine
        first = quarantine.head(waiting)
        if first is None or not self.num_slots:
            return first
        running = self._running()
        claimant = self._claimant
        if claimant is not None and claimant.status is Status.WAITING and self._has_slot(claimant, running):
            return claimant
        if self._has_slot(first, running):
            return first
        if quarantine.isolates:
            return None
        return next((each for each in waiting.look_ahead() if self._has_slot(each, running)), None)

    @property
    def are_short(self) -> bool:
        """Whether sequences wait, and all of them lack a slot."""
        states = self._states
        if not self.num_slots or states.quarantine.isolates:
            return False
        return bool(len(states.waiting)) and self.head() is None

    def make_room(self, plan: Plan) -> Sequence | None:
        """Preempts the rows of an adapter whose turn is over, if another one waits. Returns the sequence that
        they make room for; it begins with the next plan, or with this one where nothing is left. To be called
        for every plan."""
        if not self.num_slots:
            return None
        running = self._running()
        self._count(running)
        self._claimant = self._choose(running)
        self._draining = b""
        if self._claimant is None or len(running) < self.num_slots:
            return None
        left = {digest: self._steps_left(digest, rows) for digest, rows in running.items()}
        first = min(left, key=left.__getitem__)
        if left[first]:
            if 2 * (self._step - self._since[first]) >= self._turn:
                self._draining = first
            return None
        for victim in reversed(running[first]):  # the first one will be ahead of the others
            self._states.preempt(victim, plan, ends_turn=True)
        self._states.drop_stopped()
        self._stopped(first)
        return self._claimant

    def check_invariants(self) -> None:
        """Raises InvariantError where more adapters run than there are slots. Cost: running sequences."""
        if self.num_slots and len(self._running()) > self.num_slots:
            raise InvariantError(f"more than {self.num_slots} adapters run")

    def _running(self) -> dict[bytes, list[Sequence]]:
        """Returns the sequences of each adapter that runs, in order of admission."""
        running: dict[bytes, list[Sequence]] = {}
        for sequence in self._states.running:
            if sequence.status is Status.RUNNING and (digest := _digest(sequence)):
                running.setdefault(digest, []).append(sequence)
        return running

    def _has_slot(self, sequence: Sequence, running: dict[bytes, list[Sequence]]) -> bool:
        """Whether a sequence needs no slot, or has one or a free one."""
        digest = _digest(sequence)
        if digest in running:
            return digest != self._draining
        return not digest or len(running) < self.num_slots

    def _count(self, running: dict[bytes, list[Sequence]]) -> None:
        """Begins a step: registers the adapters that run, and those that do so no more."""
        self._step += 1
        for digest in [digest for digest in self._since if digest not in running]:
            self._stopped(digest)
        for digest in running:
            self._since.setdefault(digest, self._step)
        rows = chain.from_iterable(running.values())
        self._begun_at = {row: self._begun_at.get(row, row.num_tokens) for row in rows}

    def _stopped(self, digest: bytes) -> None:
        del self._since[digest]
        self._last_run[digest] = self._step
        self._last_run.move_to_end(digest)
        if len(self._last_run) > MAX_ADAPTERS:
            self._last_run.popitem(last=False)

    def _choose(self, running: dict[bytes, list[Sequence]]) -> Sequence | None:
        """Returns the sequence that gets the next slot; None: the first of the queue lacks none. Which tenant
        is next is known by the queue; of its sequences that lack a slot, it is the one whose adapter has not
        run for the longest time. While suspects wait, it is the first of them: no other may begin."""
        states = self._states
        head = states.quarantine.head(states.waiting)
        if head is None:
            return None
        if states.quarantine.isolates:
            self._draining = b""
            return None if self._has_slot(head, running) else head
        claimant, priority, tenant = self._claimant, head.request.priority, head.request.tenant
        if (
            claimant is not None
            and claimant.status is Status.WAITING
            and claimant.request.priority <= priority
            and _digest(claimant) not in running
        ):
            return claimant
        self._draining = b""
        if self._has_slot(head, running):
            return None
        lacking = (
            each
            for each in states.waiting
            if each.request.priority == priority
            and each.request.tenant == tenant
            and not self._has_slot(each, running)
        )
        return min(lacking, key=lambda each: self._last_run.get(_digest(each), 0))

    def _steps_left(self, digest: bytes, rows: list[Sequence]) -> int:
        """Returns the steps after which an adapter's slot is free for the claimant at the latest; 0: its turn
        is over. A turn lasts until each of its rows has got a token, and goes on beside claimants of worse
        classes, and for beam searches: one that is preempted starts again from its prompt."""
        assert self._claimant is not None
        longest = max(1, *(row.limit - row.num_tokens for row in rows))
        requests, priority = [row.request for row in rows], self._claimant.request.priority
        if any(each.priority < priority or each.beam_search is not None for each in requests):
            return longest
        least = int(any(row.num_tokens == self._begun_at[row] for row in rows))
        return min(longest, max(least, self._since[digest] + self._turn - self._step))


def _digest(sequence: Sequence) -> bytes:
    """Returns the digest of a sequence's adapter; empty: it has none, or one of virtual tokens, which are
    input of the step as other tokens are."""
    adapter = sequence.request.parameters.adapter
    return b"" if adapter is None or adapter.virtual_tokens else adapter.digest
