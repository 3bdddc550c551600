"""Rows for a better class: where none is free, running sequences of worse classes give up theirs.

Without this a request of the best class waits until some sequence ends. A victim resumes later, from copies
of its blocks or by recomputation, so it is chosen by what that costs, at most a step's budget of tokens, and
no request gives up rows once it was preempted twice.
"""

from __future__ import annotations

from engine_core.kv_cache.preemption_order import victims_first
from engine_core.queue.base import rows_of
from engine_core.request import Sequence, Status
from engine_core.scheduler.planning.admission import Admission
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import Plan

MAX_PREEMPTIONS = 2
"""Preemptions of a request, for rows or for blocks, after which it gives up no more rows."""


class RowPreemption:
    """Preempts for the first of the queue."""

    def __init__(
        self, states: SequenceStates, admission: Admission, max_tokens_lost: int, *, enabled: bool
    ) -> None:
        """max_tokens_lost: most tokens that a victim would have to compute again."""
        self._states, self._admission = states, admission
        self._max_tokens_lost, self._enabled = max_tokens_lost, enabled

    def make_room(self, plan: Plan) -> Sequence | None:
        """Preempts as many sequences of worse classes as the first of the queue lacks rows, if there are so
        many. Returns it then; it begins with the next plan, or with this one where nothing is left."""
        states = self._states
        if not self._enabled or not len(states.waiting) or states.quarantine.isolates:
            return None
        head = states.waiting.head()
        if head is None or rows_of(head) <= len(states.rows.free) or self._admission.is_out_of_reach(head):
            return None
        victims = self._victims(head)
        if len(victims) < rows_of(head) - len(states.rows.free):
            return None
        for victim in victims:
            if rows_of(head) <= len(states.rows.free):
                break
            if victim.status is Status.RUNNING:
                states.preempt(victim, plan)
        states.drop_stopped()
        return head

    def _victims(self, head: Sequence) -> list[Sequence]:
        """Returns the sequences that may give up their rows, the worst class and the cheapest first."""
        worse = [
            sequence
            for sequence in self._states.running
            if sequence.request.priority > head.request.priority
            and sequence.request.num_preemptions < MAX_PREEMPTIONS
            and self._states.num_tokens_lost(sequence) <= self._max_tokens_lost
        ]
        return victims_first(worse, self._states.num_tokens_lost)
