"""What a step computes: running sequences first, then waiting ones, within the budget of tokens.

A sequence that runs advances unless it is preempted or must wait for a result. Sequences are admitted in the
order of the queue, while rows, blocks and budget suffice; behind one that must wait, all others wait too.
"""

from __future__ import annotations

from engine_core.request import Sequence, Status
from engine_core.scheduler.outputs.outputs import Start
from engine_core.scheduler.outputs.prompt_logprobs import PromptLogprobs
from engine_core.scheduler.planning.admission import Admission, Overtaking
from engine_core.scheduler.planning.drafts import DraftRoom
from engine_core.scheduler.planning.row_preemption import RowPreemption, RowSharing
from engine_core.scheduler.planning.step_batch import Batch
from engine_core.scheduler.request_ends import FaultIsolation
from engine_core.scheduler.states.running import SlotAllocator
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import ForkRow, Plan


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
    ) -> None:
        self.slots = SlotAllocator(states)
        self.draft_room = DraftRoom(self.slots, samples_per_row, speculative_tokens_per_step)
        self.admission = Admission(states)
        self.row_preemption = RowPreemption(
            states, self.admission, max_num_batched_tokens, enabled=preempt_rows
        )
        self.row_sharing = RowSharing(states, self.admission, max_num_batched_tokens, enabled=share_rows)
        self.overtaking = Overtaking(states)
        self._states, self._faults, self._prompt_logprobs = states, faults, prompt_logprobs

    def fill(self, plan: Plan, batch: Batch, now: float, *, in_flight: bool) -> None:
        """Adds the sequences of a step to a plan and its batch. now: seconds. in_flight: whether there are
        plans without a result."""
        before = self._states.num_preemptions
        first = self.row_preemption.make_room(plan) or self.row_sharing.make_room(plan)
        self._schedule_running(plan, batch, now, before)
        if self._states.num_preemptions == before:
            self._schedule_waiting(plan, batch, now)
        elif first is not None and not (batch.sequences or in_flight):
            self._schedule_next(first, plan, batch, now)  # all gave up their rows: the device would idle

    def _schedule_running(self, plan: Plan, batch: Batch, now: float, before: int) -> None:
        """Schedules the running sequences. before: preemptions before this plan."""
        states = self._states
        if needy := [sequence for sequence in states.running if sequence.num_tokens > sequence.num_slots]:
            self.slots.reserve_slots(needy, plan)
            going = self.slots.join_followers(plan)
            going += [sequence for sequence in states.running if sequence.num_tokens <= sequence.num_slots]
        else:
            going = states.running
        if going:  # all but the last one have computed their prompts
            last = going[-1]
            decoding = going if last.is_decoding else going[:-1]
            drafts = self.draft_room.add(decoding, len(going) - len(decoding), plan, batch)
            if not drafts:
                batch.add_decoding(going[:-1])
            if not drafts or decoding is not going:
                if states.num_preemptions == before:
                    self._schedule_overtakers(last, plan, batch, now)
                batch.add(last)
            self._advance_prompt(plan, batch, now)

    def _schedule_overtakers(self, prompt: Sequence, plan: Plan, batch: Batch, now: float) -> None:
        """Admits waiting sequences ahead of a running prompt that takes more than one step."""
        room = self.overtaking.room(prompt, batch.budget)
        states = self._states
        while room and states.rows.free and not states.quarantine.isolates:
            sequence = states.waiting.head()
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
        while batch.budget and states.rows.free and (sequence := states.quarantine.head(states.waiting)):
            if not self._schedule_next(sequence, plan, batch, now):
                return  # it must wait, and so must those behind it

    def _schedule_next(
        self, sequence: Sequence, plan: Plan, batch: Batch, now: float, most: int | None = None
    ) -> bool:
        """Admits a waiting sequence, unless it must wait: then it returns False. most: tokens that it may
        compute; None: what the budget has left, in this step and the next ones."""
        cached = None
        with self._faults.of(sequence.request):
            cached = self.admission.look(sequence)
        if cached is None:
            return sequence.status is Status.ENDED
        if most is not None and self.overtaking.cost(sequence, cached) > most:
            return False
        self._admit(sequence, cached, plan, now)
        batch.add(sequence)
        self._advance_prompt(plan, batch, now)
        return True

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
