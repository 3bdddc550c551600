"""What a step computes: running sequences first, then waiting ones, within the budget of tokens.

A sequence that runs advances unless it is preempted or must wait for a result. Sequences are admitted in the
order of the queue, while rows, blocks and budget suffice; behind one that must wait, all others wait too,
unless it waits for a slot of its adapter (adapter_slots.py).
"""

from __future__ import annotations

from collections import Counter

from engine_core.media.encoder_cache import EncoderCache
from engine_core.queue.base import rows_of
from engine_core.request import Sequence, Status
from engine_core.scheduler.outputs.outputs import Start
from engine_core.scheduler.outputs.prompt_logprobs import PromptLogprobs
from engine_core.scheduler.planning.adapter_slots import AdapterSlots
from engine_core.scheduler.planning.admission import Admission, Overtaking
from engine_core.scheduler.planning.bursts import Bursts
from engine_core.scheduler.planning.drafts import DraftRoom
from engine_core.scheduler.planning.micro_batches import MicroBatches
from engine_core.scheduler.planning.step_batch import Batch
from engine_core.scheduler.request_ends import FaultIsolation
from engine_core.scheduler.states.running import SlotAllocator
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import ForkRow, Plan
from pagewire.limits import MAX_STEP_VECTOR_VALUES

MAX_PREEMPTIONS = 2
"""Preemptions of a request, for rows or for blocks, after which it gives up no more rows."""
ENOUGH = 0.5
"""Of its share: a tenant that holds more gets the rest as sequences end. Otherwise two tenants that are near
their shares would take rows from one another, step by step."""


class RowPreemption:
    """Preempts sequences of worse classes where the first of the queue finds no free row.

    Without this a request of the best class waits until some sequence ends. A victim resumes later, from
    copies of its blocks or by recomputation, so it is chosen by what that costs, at most a step's budget of
    tokens. No request gives up rows to a better class, and no sequence to another tenant, once it was
    preempted twice.
    """

    def __init__(
        self,
        states: SequenceStates,
        slots: AdapterSlots,
        admission: Admission,
        max_tokens_lost: int,
        *,
        enabled: bool,
    ) -> None:
        """max_tokens_lost: most tokens that a victim would have to compute again."""
        self._states, self._slots, self._admission = states, slots, admission
        self._max_tokens_lost, self._enabled = max_tokens_lost, enabled

    def make_room(self, plan: Plan) -> Sequence | None:
        """Preempts as many sequences as the first of the queue lacks rows, if there are so many. Returns it
        then; it begins with the next plan, or with this one where nothing is left."""
        states = self._states
        if not self._enabled or not len(states.waiting) or states.quarantine.isolates:
            return None
        head = self._slots.head()
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


class StepPlanner:
    """Fills plans. `admission` decides which waiting sequence may begin, and `slots` allocates blocks to
    running sequences and preempts."""

    def __init__(
        self,
        states: SequenceStates,
        faults: FaultIsolation,
        prompt_logprobs: PromptLogprobs,
        *,
        max_num_batched_tokens: int,
        samples_per_row: int,
        speculative_tokens_per_step: int,
        preempt_rows: bool,
        share_rows: bool,
        burst_seconds: float,
        max_adapters_per_step: int,
        adapter_turn: int,
        whole_prompts: bool,
        encoder: EncoderCache,
        stages: int,
        micro_batch_rows: int,
    ) -> None:
        """whole_prompts: a sequence begins in a step that computes all of its tokens. stages,
        micro_batch_rows: see MicroBatches."""
        self.slots = SlotAllocator(states)
        self.bursts = Bursts(self.slots, burst_seconds)
        self.micro_batches = MicroBatches(stages, micro_batch_rows)
        self.draft_room = DraftRoom(self.slots, samples_per_row, speculative_tokens_per_step)
        self.admission = Admission(states)
        self.adapter_slots = AdapterSlots(states, max_adapters_per_step, adapter_turn)
        parts = states, self.adapter_slots, self.admission, max_num_batched_tokens
        self.row_preemption = RowPreemption(*parts, enabled=preempt_rows)
        self.row_sharing = RowSharing(*parts, enabled=share_rows)
        self.overtaking = Overtaking(states)
        self._states, self._faults, self._prompt_logprobs = states, faults, prompt_logprobs
        self._whole_prompts, self._encoder = whole_prompts, encoder
        self._whole_item = 0  # tokens of an item that is seen whole, for which the last plan had no room

    def fill(self, plan: Plan, batch: Batch, now: float, *, in_flight: bool) -> None:
        """Adds the sequences of a step to a plan and its batch. now: seconds. in_flight: whether there are
        plans without a result."""
        before = self._states.num_preemptions
        self._encoder.begin_plan()
        first = self.adapter_slots.make_room(plan)
        first = first or self.row_preemption.make_room(plan) or self.row_sharing.make_room(plan)
        self._schedule_running(plan, batch, now, before)
        if self._states.num_preemptions == before:
            self._schedule_waiting(plan, batch, now)
        elif first is not None and not (batch.sequences or in_flight):
            self._schedule_next(first, plan, batch, now)  # all gave up their rows: the device would idle

    def _schedule_running(self, plan: Plan, batch: Batch, now: float, before: int) -> None:
        """Schedules the running sequences. before: preemptions before this plan."""
        states = self._states
        due = self.micro_batches.due(states.running, together=self.bursts.are_short)
        if needy := [sequence for sequence in due if sequence.num_tokens > sequence.num_slots]:
            self.slots.reserve_slots(needy, plan)
            going = self.slots.join_followers(plan)
            going += [
                sequence
                for sequence in due
                if sequence.num_tokens <= sequence.num_slots and sequence.status is Status.RUNNING
            ]
        else:
            going = due
        if going:  # all but the last one have computed their prompts
            last = going[-1]
            decoding = going if last.is_decoding else going[:-1]
            waits = self._whole_item if states.waiting and states.rows.free else 0
            reserved = waits if decoding is going else self._encoder.least(last, last.num_computed_tokens)
            drafts = self.draft_room.add(decoding, reserved, plan, batch)
            alone = decoding is going and self.micro_batches.width == 1
            if not drafts and alone and not (states.waiting or states.preparing):
                drafts = self.bursts.add(decoding, plan, batch)
            if not drafts:
                batch.add_decoding(going[:-1])
            if not drafts or decoding is not going:
                if states.num_preemptions == before:
                    self._schedule_overtakers(last, plan, batch, now)
                self._add(last, plan, batch)
            self._advance_prompt(plan, batch, now)

    def _schedule_overtakers(self, prompt: Sequence, plan: Plan, batch: Batch, now: float) -> None:
        """Admits waiting sequences ahead of a running prompt that takes more than one step."""
        states, start, end = self._states, prompt.num_computed_tokens, prompt.num_tokens
        is_cut = batch.end_of(prompt) < end or not self._encoder.affords(prompt, start, end)
        least = self._encoder.least(prompt, start)
        room = self.overtaking.room(prompt, batch.budget, least) if is_cut else 0
        if room:  # what the prompt itself needs to go on comes first
            self._encoder.extend(prompt, start, start + least, plan)
        while room and states.rows.free and not states.quarantine.isolates:
            sequence = self.adapter_slots.head()
            if sequence is None or not states.waiting.claim(prompt):
                return
            most, before = room, batch.budget
            if not self._schedule_next(sequence, plan, batch, now, most):
                return
            room -= before - batch.budget
            if sequence.status is not Status.ENDED:
                self.overtaking.num_overtakers += 1
                states.overtaken(prompt)

    def _schedule_waiting(self, plan: Plan, batch: Batch, now: float) -> None:
        """Admits waiting sequences in their order while rows, blocks and budget suffice."""
        states = self._states
        while batch.budget and states.rows.free and (sequence := self.adapter_slots.head()):
            if not self._schedule_next(sequence, plan, batch, now):
                return  # it must wait, and so must those behind it

    def _schedule_next(
        self, sequence: Sequence, plan: Plan, batch: Batch, now: float, most: int | None = None
    ) -> bool:
        """Admits a waiting sequence, unless it must wait: then it returns False. most: tokens that it may
        compute; None: what the budget has left, in this step and the next ones."""
        if self._whole_prompts and sequence.num_new_tokens > batch.budget:
            batch.budget = 0  # what is left is for nothing else: the sequence is first in the next step
            return False
        if batch.num_vector_values + sequence.request.num_vector_values > MAX_STEP_VECTOR_VALUES:
            return False  # vectors of rows that end in one step are one message
        cached = None
        with self._faults.of(sequence.request):
            cached = self.admission.look(sequence)
        if cached is None:
            return sequence.status is Status.ENDED
        cost = self.overtaking.cost(sequence, cached)
        if most is not None and cost > most:
            return False
        start = sequence.num_tokens - cost
        least = self._encoder.least(sequence, start)
        self._whole_item = least if least > batch.budget else 0
        if self._whole_item:
            return False  # it begins with an image that is computed whole
        if not self._encoder.affords(sequence, start, start + 1 if most is None else sequence.num_tokens):
            return False
        self._admit(sequence, cached, plan, now)
        self._add(sequence, plan, batch)
        self._advance_prompt(plan, batch, now)
        return True

    def _add(self, sequence: Sequence, plan: Plan, batch: Batch) -> None:
        """Has a sequence compute as many of its new tokens as budget and encoder allow."""
        start = sequence.num_computed_tokens
        batch.add(sequence, self._encoder.extend(sequence, start, batch.end_of(sequence), plan))

    def _admit(self, sequence: Sequence, cached: list[int], plan: Plan, now: float) -> None:
        request = sequence.request
        new_row = self.admission.admit(sequence, cached, plan)
        self._prompt_logprobs.admit(sequence, new_row)
        if not request.scheduled:
            request.scheduled = True
            found = min(sequence.num_computed_tokens, len(request.prompt))
            waits = self._states.wait_causes.began(request)
            self._states.outputs.started.append(Start(request, now - request.arrival, found, waits))
            history = request.history
            history.began, history.waits, history.num_cached_tokens = now, waits, found

    def _advance_prompt(self, plan: Plan, batch: Batch, now: float) -> None:
        """Shares the prompt that the batch's last sequence has computed so far, and forks its siblings.

        Only the last sequence can be in its prompt: a prompt that is cut takes the rest of the budget, and no
        sequence is admitted behind it before it is complete.
        """
        sequence = batch.sequences[-1]
        self._states.prefix_cache.commit(sequence)
        if batch.counts[-1] > 1 and not batch.last_decodes:
            self._states.prefix_cache.save_states(sequence, batch.starts[-1], plan)
        history = sequence.request.history
        if history.prefill is None and history.began is not None and not sequence.num_new_tokens:
            history.prefill = now - history.began - history.paused
        if sequence.leads and not sequence.num_new_tokens:
            for sibling in self._states.fork_siblings(sequence):
                plan.forks.append(ForkRow(sibling.row, sequence.row, sibling.index))
                batch.add_fork(sibling)
