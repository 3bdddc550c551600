"""Room for drafts: how many tokens each decoding row may sample in a step, and whether drafts pay.

The worker drafts, since it has a row's last token first. With each result it says how many tokens it would
draft for each row (`Sequence.num_drafts`). Where that pays, the next plan reserves slots for as many, within
three bounds: the tokens per row, the tokens that all decoding rows compute in one step, and the free blocks.
What is not accepted is given back with the result.

A step with drafts is not overlapped: until its result, it is not known how far its rows have come, and a plan
without them would read all weights for the others alone. Nor are the first two steps without drafts behind an
accepted draft: a text that repeats itself often goes on to do so two tokens behind a change, and a plan made
ahead has no room for that. Other steps without drafts are planned ahead as always.

A step with drafts computes more tokens, and the next one is not planned meanwhile. What that costs depends on
the model and the machine, so it is measured: seconds from the end of one step to the end of the next, with
drafts and without, by the number of rows. What it gains depends on the text: each sequence has its own yield,
the accepted tokens of a draft.

    (rows + yields) / seconds with drafts  >  rows / seconds without

Times come with results and are recorded with them, so that a replay decides the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many

from engine_core.request import Sequence
from engine_core.scheduler.planning.step_batch import Batch
from engine_core.scheduler.states.running import SlotAllocator
from engine_core.step.plan import Plan
from engine_core.step.result import Result

MARGIN = 1.02
"""How much faster drafts must be."""
FIRST_YIELD = 1.0
"""Of the first sequence. Later ones begin with what others have lately, or with this if that is less."""
_NEW_TYPICAL = 0.2
"""Weight of the latest draft in the yield of others."""
_NEW_YIELD = 0.15
"""Weight of the latest draft in a sequence's yield: one of four tokens that are right with a probability of
0.8 gives none in every fifth step, and two or three in a row must not end the drafts."""
_RECOVERY = 1 / 512
"""What the yield gains with a step in which a draft was not tried: it is tried again now and then."""
_NEW_PERIOD = 0.2
"""Weight of the latest step in the seconds of its kind."""
_FIRST_STEPS = 4
"""Of a kind, of which the shortest counts: the first ones prepare what later ones find prepared."""
_OUTLIER = 4.0
"""A step counts as so many times the usual seconds at most."""
_AWAITED = 2
"""Steps without drafts that are awaited, behind one with an accepted draft."""


class DraftGain:
    """Measures steps and drafts, and says whether drafts pay."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, bool], float] = {}  # by rows (bit length), and with drafts or without
        self._steps: Counter[tuple[int, bool]] = Counter()  # of each kind
        self._typical = FIRST_YIELD
        self._ended_ns = 0  # the last step, on the worker's clock; 0: the worker was idle since

    def idle(self) -> None:
        """There is nothing to do: the time until the next step does not count."""
        self._ended_ns = 0

    def step_done(self, plan: Plan, result: Result, was_awaited: bool) -> None:
        """Takes the times of a step. Steps that compute parts of prompts, by the model or a draft
        model, are not compared.

        was_awaited: its plan was made only after the result before it. That takes longer, as a step without
        drafts does not where nothing is drafted; so such a step counts until there are others.
        """
        began, self._ended_ns = self._ended_ns, result.started_ns + 1000 * result.duration_us
        only_decodes = len(plan.sample_rows) == len(plan.rows)
        only_decodes &= sum(plan.counts) == len(plan.rows) + plan.num_extra_samples
        if not began or not result.duration_us or not only_decodes or result.draft_prefill:
            return
        kind = len(plan.rows).bit_length(), any(result.draft_counts)
        if was_awaited and not kind[1] and self._steps[kind] >= _FIRST_STEPS:
            return
        seconds = (self._ended_ns - began) / 1e9
        usual = self._seconds.setdefault(kind, seconds)
        self._steps[kind] += 1
        if self._steps[kind] <= _FIRST_STEPS:
            self._seconds[kind] = min(seconds, usual)
        else:
            self._seconds[kind] += _NEW_PERIOD * (min(seconds, _OUTLIER * usual) - usual)

    def pays(self, num_rows: int, drafting: list[Sequence]) -> bool:
        """Whether drafts for these of num_rows sequences make a step worth its time; True: not known yet."""
        size = num_rows.bit_length()
        drafts, plain = self._seconds.get((size, True)), self._seconds.get((size, False))
        if drafts is None or plain is None or self._steps[size, True] < _FIRST_STEPS:
            return True
        expected = sum(map(self._yield_of, drafting))
        return (num_rows + expected) * plain > MARGIN * num_rows * drafts

    def judge(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Takes what a step has drafted for a sequence for which the worker has drafts."""
        known = self._yield_of(sequence)
        if num_drafted:
            sequence.draft_yield = known + _NEW_YIELD * (num_accepted - known)
            self._typical += _NEW_TYPICAL * (num_accepted - self._typical)
        else:
            sequence.draft_yield = max(known, min(FIRST_YIELD, known + _RECOVERY))

    def _yield_of(self, sequence: Sequence) -> float:
        known = sequence.draft_yield
        return max(FIRST_YIELD, self._typical) if known is None else known


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

    def add(self, decoding: Many[Sequence], reserved: int, plan: Plan, batch: Batch) -> bool:
        """Adds sequences that decode to the batch, if there is room for a draft: each computes a token, and
        so many drafts. Otherwise it adds nothing and returns False.

        reserved: tokens of the budget that a prompt behind them needs.
        """
        drafting = [sequence for sequence in decoding if sequence.num_drafts] if self.drafts else []
        if not drafting or not self._gain.pays(len(decoding), drafting):
            return False
        room = self._share_out(drafting, len(decoding), batch.budget - reserved, plan)
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
