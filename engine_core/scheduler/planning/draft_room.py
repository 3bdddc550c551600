"""Room for drafts: how many tokens each decoding row may sample in a step.

The worker drafts, since it has a row's last token first. With each result it says how many tokens it would
draft for each row (`Sequence.num_drafts`). Where that pays (draft_gain.py), the next plan reserves slots for
as many, within three bounds: the tokens per row, the tokens that all decoding rows compute in one step, and
the free blocks. What is not accepted is given back with the result.

A step with drafts is not overlapped: until its result, it is not known how far its rows have come, and a plan
without them would read all weights for the others alone. Nor are the first two steps without drafts behind an
accepted draft: a text that repeats itself often goes on to do so two tokens behind a change, and a plan made
ahead has no room for that. Other steps without drafts are planned ahead as always.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from engine_core.request import Sequence
from engine_core.scheduler.planning.draft_gain import DraftGain
from engine_core.scheduler.planning.step_batch import Batch
from engine_core.scheduler.states.running import SlotAllocator
from engine_core.step.plan import Plan
from engine_core.step.result import Result

_AWAITED = 2
"""Steps without drafts that are awaited, behind one with an accepted draft."""


class DraftRoom:
    """Plans rows that decode, with room for drafts."""

    def __init__(self, slots: SlotAllocator, samples_per_row: int, tokens_per_step: int) -> None:
        """samples_per_row: most tokens that a row samples in one step. tokens_per_step: most tokens that
        decoding rows compute in a step with drafts; so more rows get shorter drafts, or none. 0: no bound."""
        self._slots = slots
        self._samples_per_row, self._tokens_per_step = samples_per_row, tokens_per_step
        self.drafts = samples_per_row > 1
        """Whether rows may be drafted for."""
        self._gain = DraftGain()
        self._num_awaited = 0  # steps without drafts that are still to be awaited
        self._was_awaited = False  # the step whose result came last

    def waits(self, last: Plan | None) -> bool:
        """Whether no plan is made before the result of `last`, the youngest plan in flight."""
        return last is not None and (bool(last.sample_counts) or self._num_awaited > 0)

    def note(self, plan: Plan, sampling: list[Sequence], result: Result) -> None:
        """Takes what became of drafts, and how much the worker would draft now. sampling: [A] the plan's
        sequences."""
        if not self.drafts:
            return
        self._gain.step_done(plan, result, self._was_awaited)
        self._was_awaited = self.waits(plan)
        none = [0] * len(sampling)
        drafted, taken = result.draft_counts or none, result.sample_counts or none
        columns = zip(sampling, result.next_draft_counts or none, drafted, taken, strict=True)
        for sequence, num_next, num_drafted, num_taken in columns:
            if sequence.num_drafts:
                self._gain.judge(sequence, num_drafted, num_taken - 1)
            sequence.num_drafts = num_next
        accepted = sum(taken) > len(sampling)
        self._num_awaited = _AWAITED if accepted else max(0, self._num_awaited - 1)

    def idle(self) -> None:
        """No request is left."""
        self._num_awaited = 0
        self._gain.idle()

    def add(self, decoding: Many[Sequence], num_others: int, plan: Plan, batch: Batch) -> bool:
        """Adds sequences that decode to the batch, if there is room for a draft: each computes a token, and
        so many drafts. Otherwise it adds nothing and returns False.

        num_others: sequences that come behind them, which need a token of the budget each.
        """
        drafting = [sequence for sequence in decoding if sequence.num_drafts] if self.drafts else []
        if not drafting or not self._gain.pays(len(decoding), drafting):
            return False
        room = self._share_out(drafting, len(decoding), batch.budget - num_others, plan)
        if not any(room.values()):
            return False
        for sequence in decoding:
            batch.add_sampling(sequence, 1 + room.get(sequence, 0))
        return True

    def _share_out(
        self, drafting: list[Sequence], num_decoding: int, budget: int, plan: Plan
    ) -> dict[Sequence, int]:
        """Returns the tokens beyond one that each sequence may sample; what one leaves goes to the next.

        budget: tokens that the decoding sequences may compute.
        """
        bound = min(budget, self._tokens_per_step or budget)
        spare, room = bound - num_decoding, {}
        for index, sequence in enumerate(drafting):
            share = -(-spare // (len(drafting) - index))
            wanted = min(share, sequence.num_drafts, sequence.request.max_drafts, self._samples_per_row - 1)
            if wanted > 0 and not sequence.request.num_candidates:
                room[sequence] = self._slots.reserve_ahead(sequence, wanted, num_decoding, plan)
                spare -= room[sequence]
        return room
