"""Slots for running sequences, and preemption when the pool has none."""

from engine_core.request import Sequence, Status
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import Plan


class SlotAllocator:
    """Allocates blocks to running sequences."""

    def __init__(self, states: SequenceStates) -> None:
        self._states, self._tables, self._prefix_cache = states, states.tables, states.prefix_cache

    def reserve_slots(self, needy: list[Sequence], plan: Plan) -> None:
        """Reserves slots for running sequences that have used up theirs: at most one block per row.

        If the pool is short, sequences are served in reverse order of preemption, and the first victims are
        preempted for them. But a sequence whose last token is pending needs no slot and will free its blocks:
        then no sequence is preempted, and those that get no slot are not in this plan.
        """
        growing = [sequence for sequence in needy if sequence.can_advance]
        followers = sum(len(group.followers) for group in self._states.leaders.values())
        ends = any(sequence.num_tokens >= sequence.limit for sequence in needy)
        if ends or len(growing) + followers <= self._tables.pool.num_free:
            for sequence in growing:
                self._make_room(sequence, plan)
            return
        order, wanting = self._states.victims_first(self._states.running), set(growing)
        victims = iter(order)
        for sequence in reversed(order):
            if sequence in wanting:
                while sequence.status is Status.RUNNING and not self._make_room(sequence, plan):
                    self._states.preempt(next(victims), plan)
        self._states.drop_stopped()

    def join_followers(self, plan: Plan) -> list[Sequence]:
        """Returns the followers that enter the plan with their leaders."""
        followers: list[Sequence] = []
        for leader, group in self._states.leaders.items():
            followers += group.join(leader, plan, self._states.rows)
        return followers

    def reserve_ahead(self, sequence: Sequence, count: int, num_spared: int, plan: Plan) -> int:
        """Reserves slots for up to `count` more tokens of a sequence; returns for how many there are slots.

        num_spared: blocks that stay free: uncertain tokens are no reason to preempt.
        """
        end = min(sequence.num_tokens + count, sequence.limit - 1)
        if end > sequence.num_slots and self._tables.pool.num_free > num_spared:
            self._prefix_cache.commit(sequence)
            self._tables.reserve(sequence, end, plan)
        return max(0, min(end, sequence.num_slots) - sequence.num_tokens)

    def _make_room(self, sequence: Sequence, plan: Plan) -> bool:
        """Reserves the slots that a running sequence lacks; returns False, and changes nothing, when the pool
        has too few free blocks.

        Its blocks are full, so they are offered to the prefix cache here, and in no other step.
        """
        group = self._states.groups[sequence.request]
        for each in group.writers(sequence):
            self._prefix_cache.commit(each)
        return group.reserve(sequence, self._tables, plan)
