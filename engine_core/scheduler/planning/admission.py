"""Admission of waiting sequences: whether rows and blocks suffice, and which may overtake a long prompt.

A prompt that is longer than the rest of a step's budget takes all of it, step after step, and whatever waits
would get its first token when it is over. So the first of the queue, if it is of another tenant, may take the
share of that budget to which the tenants that wait are entitled, and if it is of a better class, almost all
of it. Only prompts that fit into this share overtake: there is one unfinished prompt at a time.
"""

from __future__ import annotations

from engine_core.queue.base import rows_of
from engine_core.request import Sequence
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import NewRow, Plan


class Admission:
    """Admits sequences that wait."""

    def __init__(self, states: SequenceStates) -> None:
        self._states, self._tables, self._prefix_cache = states, states.tables, states.prefix_cache
        self._refused: Sequence | None = None  # the last one that did not fit, unless one was admitted since
        self._lacked = 0  # blocks that it needs for itself and its siblings

    def look(self, sequence: Sequence) -> list[int] | None:
        """Returns the cached blocks of a sequence that can be admitted now; None if it must wait, as one of
        which a plan in flight still samples a token."""
        if sequence.num_tokens > sequence.num_known_tokens or self.is_out_of_reach(sequence):
            return None
        cached = self._prefix_cache.find(sequence)
        return cached if self.fits(sequence, cached) else None

    def admit(self, sequence: Sequence, cached: list[int], plan: Plan) -> NewRow:
        """Gives a sequence that fits rows and blocks, and lets it run; returns its row in the plan."""
        request = sequence.request
        assert sequence.num_tokens == sequence.num_known_tokens, "a plan that preempts admits no sequence"
        self._refused = None
        self._states.admit(sequence, _slots_at_admission(sequence), cached, plan)
        new_row = NewRow(
            row=sequence.row,
            token_ids=sequence.token_ids(),
            prompt_len=len(request.prompt),
            blocks=sequence.blocks.copy(),
            sequence_index=sequence.index,
            parameters=request.parameters,
            num_beam_candidates=request.num_candidates,
            tenant=request.tenant,
        )
        plan.new_rows.append(new_row)
        return new_row

    def is_out_of_reach(self, sequence: Sequence) -> bool:
        """Whether a sequence did not fit before, and there are still fewer free blocks than it needs.

        Looking up its prefix again costs time in proportion to its length and gives the same answer: any
        sequence that has pinned part of the prefix since took as many free blocks as the hit would save.
        """
        if sequence is not self._refused or not self._states.running:
            return False
        return self._lacked + self._room(sequence) > self._tables.pool.num_free

    def fits(self, sequence: Sequence, cached: list[int]) -> bool:
        """Whether there are rows for the sequence, and blocks for the whole prompt and the siblings that have
        rows.

        Cached blocks that other sequences hold cost nothing; cached blocks that are free cost one each.

        One more free block is required for every running sequence and sibling, which will need one soon and
        would preempt a sequence for it. After each preemption a sequence needs more room to be admitted
        again, so that no sequence is preempted over and over. An engine whose blocks nothing holds admits any
        valid request.
        """
        free = len(self._states.rows.free)
        if self.rows_needed(sequence) > free:
            return False
        siblings = min(len(sequence.request.forking), free - 1) if sequence.leads else 0
        blocks = self._tables.missing(_slots_at_admission(sequence), cached) + siblings
        is_idle = not (self._states.running or self._tables.held)
        if blocks + self._room(sequence) <= self._tables.pool.num_free or is_idle:
            return True
        self._refused, self._lacked = sequence, blocks
        return False

    def rows_needed(self, sequence: Sequence) -> int:
        """Returns the rows without which a sequence cannot begin: of beams, all. Siblings that sample for
        themselves may begin later, where they find the prompt in the cache."""
        request = sequence.request
        may_part = request.beam_search is None and self._prefix_cache.keeps(request)
        return 1 if may_part else rows_of(sequence)

    def _room(self, sequence: Sequence) -> int:
        """Free blocks to leave for the running sequences."""
        return len(self._states.running) * (1 + sequence.num_preemptions)


def _slots_at_admission(sequence: Sequence) -> int:
    """Slots for all tokens and the next one, without one for the last token of a sequence."""
    return min(sequence.num_tokens + 1, sequence.limit - 1)


class Overtaking:
    """How much of a plan's budget goes to others before an unfinished prompt gets the rest."""

    def __init__(self, states: SequenceStates) -> None:
        self._waiting, self._swap, self._block_size = states.waiting, states.swap, states.tables.block_size
        self.num_overtakers = 0
        """Sequences that began ahead of a longer prompt, since the start."""

    def room(self, prompt: Sequence, budget: int, least: int = 1) -> int:
        """Returns how many tokens of the budget are for others than a running prompt that does not end in
        this step: it gets the rest, at least so many tokens."""
        if not len(self._waiting):
            return 0
        return min(int(budget * self._waiting.claim(prompt)), budget - least)

    def cost(self, sequence: Sequence, cached: list[int]) -> int:
        """Returns the tokens that a waiting sequence computes when it is admitted. cached: its blocks."""
        found = max(len(cached) * self._block_size, self._swap.num_tokens(sequence))
        return max(sequence.num_tokens - found, 1)
