"""Rows for the first of the queue: where none is free, running sequences give up theirs.

Without this a request of the best class waits until some sequence ends, and a tenant with long sequences, or
with many of one request, holds all rows until they end. So sequences of worse classes give up their rows
(RowPreemption), and those of a tenant that holds more than its share (RowSharing). A victim resumes later,
from copies of its blocks or by recomputation, so it is chosen by what that costs, at most a step's budget of
tokens. No request gives up rows to a better class, and no sequence to another tenant, once it was preempted
twice.
"""

from __future__ import annotations

from collections import Counter

from engine_core.queue.base import rows_of
from engine_core.request import Sequence
from engine_core.scheduler.planning.admission import Admission
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import Plan

MAX_PREEMPTIONS = 2
"""Preemptions of a request, for rows or for blocks, after which it gives up no more rows."""
ENOUGH = 0.5
"""Of its share: a tenant that holds more gets the rest as sequences end. Otherwise two tenants that are near
their shares would take rows from one another, step by step."""


class RowPreemption:
    """Preempts sequences of worse classes for the first of the queue."""

    def __init__(
        self, states: SequenceStates, admission: Admission, max_tokens_lost: int, *, enabled: bool
    ) -> None:
        """max_tokens_lost: most tokens that a victim would have to compute again."""
        self._states, self._admission = states, admission
        self._max_tokens_lost, self._enabled = max_tokens_lost, enabled

    def make_room(self, plan: Plan) -> Sequence | None:
        """Preempts as many sequences as the first of the queue lacks rows, if there are so many. Returns it
        then; it begins with the next plan, or with this one where nothing is left."""
        states = self._states
        if not self._enabled or not len(states.waiting) or states.quarantine.isolates:
            return None
        head = states.waiting.head()
        if head is None or self._rows_needed(head) <= len(states.rows.free):
            return None
        if self._admission.is_out_of_reach(head):
            return None
        victims = self._victims(head, self._rows_needed(head) - len(states.rows.free))
        for victim in victims:
            states.preempt(victim, plan)
        states.drop_stopped()
        return head if victims else None

    def _rows_needed(self, head: Sequence) -> int:
        return rows_of(head)

    def _victims(self, head: Sequence, missing: int) -> list[Sequence]:
        """Returns the sequences that give up their rows for the head, the worst class and the cheapest first;
        none if they are too few. missing: rows that the head lacks."""
        worse = [
            sequence
            for sequence in self._states.running
            if sequence.request.priority > head.request.priority
            and sequence.request.num_preemptions < MAX_PREEMPTIONS
            and self._states.num_tokens_lost(sequence) <= self._max_tokens_lost
        ]
        if len(worse) < missing:
            return []
        victims = []
        for sequence in self._states.victims_first(worse):
            if missing > 0:
                victims.append(sequence)
                missing -= rows_of(sequence)
        return victims


class RowSharing(RowPreemption):
    """Preempts sequences of other tenants for the first of the queue."""

    def _rows_needed(self, head: Sequence) -> int:
        return self._admission.rows_needed(head)

    def _victims(self, head: Sequence, missing: int) -> list[Sequence]:
        """Returns the sequences that give up their rows for the head, the cheapest first; none if it has no
        claim to them, or if they are too few."""
        held = self._rows_held()
        tenant, needed = head.request.tenant, self._rows_needed(head)
        if not held.keys() - {tenant}:
            return []
        if held[tenant] and held[tenant] + needed > ENOUGH * self._share(tenant, held):
            return []
        excess = {other: rows - self._share(other, held) for other, rows in held.items() if other != tenant}
        victims = []
        for sequence in self._states.victims_first(self._candidates(head, excess)):
            rows = rows_of(sequence)
            if missing > 0 and rows <= excess[sequence.request.tenant]:
                victims.append(sequence)
                excess[sequence.request.tenant] -= rows
                missing -= rows
        return victims if missing <= 0 else []

    def _candidates(self, head: Sequence, excess: dict[str, float]) -> list[Sequence]:
        return [
            sequence
            for sequence in self._states.running
            if excess.get(sequence.request.tenant, 0.0) >= 1.0
            and sequence.request.priority >= head.request.priority
            and sequence.num_preemptions < MAX_PREEMPTIONS
            and self._states.num_tokens_lost(sequence) <= self._max_tokens_lost
        ]

    def _rows_held(self) -> Counter[str]:
        """Returns how many rows each tenant holds, with those that are reserved for siblings."""
        held = Counter[str]()
        for sequence in self._states.running:
            held[sequence.request.tenant] += rows_of(sequence)
        return held

    def _share(self, tenant: str, held: Counter[str]) -> float:
        """Returns how many rows are a tenant's by weight, among the tenants that wait or hold rows."""
        return self._states.waiting.share_beside(tenant, held) * self._states.rows.num_rows
