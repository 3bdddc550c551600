"""The scheduler: which sequence computes how many tokens in the next step.

There are no phases. Each sequence has `num_tokens` and `num_computed_tokens`, and a step moves the second
toward the first within a budget of tokens. When they are equal, a token is sampled. This one rule covers
prompts in chunks, decoding, preempted sequences and requests with delivered output; a sequence whose prefix
is cached starts with computed tokens.

schedule() need not wait for the result of the plan before: it counts the tokens that are sampled there, and
their values come with update(), plan by plan. Two plans may be in flight; the worker executes them in order,
so rows and blocks that the first one uses can be allocated again in the second.

Plain Python: no socket, no clock, no torch. `now` is in seconds and comes from the caller; the same calls
give the same plans.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

from engine_core.errors import InvariantError
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.block_tables import BlockTables
from engine_core.kv_cache.fragmentation import Fragmentation
from engine_core.kv_cache.host_swap import UNMEASURED, SwapCosts, SwapSpace
from engine_core.kv_cache.prefix_cache import PrefixCache
from engine_core.quarantine.crash_journal import CrashJournal
from engine_core.quarantine.quarantine import IDLE_SLEEP_S
from engine_core.queue.policies import FAIR, make_queue
from engine_core.queue.token_counters import EQUAL, Weights
from engine_core.request import NO_TOKEN, FinishReason, Request, Sequence, Status, take_one_each
from engine_core.scheduler.admission import Admission
from engine_core.scheduler.draft_room import DraftRoom
from engine_core.scheduler.fault_isolation import FaultIsolation
from engine_core.scheduler.invariants import check_sequences
from engine_core.scheduler.outputs import NO_DRAFT, Outputs, RowDraft, Start
from engine_core.scheduler.overtaking import Overtaking
from engine_core.scheduler.prompt_logprobs import PromptLogprobs, PromptRows
from engine_core.scheduler.row_preemption import RowPreemption
from engine_core.scheduler.running import SlotAllocator
from engine_core.scheduler.sequence_states import SequenceStates
from engine_core.scheduler.step_batch import Batch
from engine_core.scheduler.vectors import take_vectors
from engine_core.sequence_group import split_candidates
from engine_core.step.plan import ForkRow, Plan
from engine_core.step.result import Result

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A plan whose result has not been taken."""

    plan: Plan
    sampling: list[Sequence]  # in the order of its sample_rows
    num_ended: int  # SequenceStates.num_ended when it was made
    prompts: PromptRows  # whose log-probabilities the result may have


class Scheduler:
    """Requests, their order, their rows and blocks. schedule(), execute the plan, update(); repeat.

    `states` holds the state of each sequence, `admission` decides which waiting sequence may begin, and
    `slots` allocates blocks to running sequences and preempts.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_cache: bool = True,
        num_host_blocks: int = 0,
        swap_costs: SwapCosts = UNMEASURED,
        policy: str = FAIR,
        weights: Weights = EQUAL,
        samples_per_row: int = 1,
        speculative_tokens_per_step: int = 0,
        preempt_rows: bool = False,
    ) -> None:
        """policy, weights: the order of admission; see queue/policies.py. samples_per_row,
        speculative_tokens_per_step: see DraftRoom. preempt_rows: see RowPreemption."""
        self.max_num_batched_tokens = max_num_batched_tokens
        # With no more rows than tokens in the budget, every running sequence advances in every step.
        self.num_rows = min(max_num_seqs, max_num_batched_tokens)
        self.pool = BlockPool(num_blocks)
        self.tables = BlockTables(self.pool, block_size)
        self.prefix_cache = PrefixCache(self.pool, block_size, enabled=prefix_cache)
        self.swap = SwapSpace(num_host_blocks, swap_costs, self.tables)
        self.waiting = make_queue(policy, weights)
        self.states = SequenceStates(self.num_rows, self.tables, self.prefix_cache, self.swap, self.waiting)
        self.slots = SlotAllocator(self.states, self.tables, self.prefix_cache)
        self.draft_room = DraftRoom(self.slots, samples_per_row, speculative_tokens_per_step)
        self.admission = Admission(self.states, self.tables, self.prefix_cache)
        self.row_preemption = RowPreemption(
            self.states, self.admission, max_num_batched_tokens, enabled=preempt_rows
        )
        self.overtaking = Overtaking(self.waiting, self.swap, block_size)
        self.quarantine = self.states.quarantine
        self.rows = self.states.rows
        self.requests = self.states.requests
        self.faults = FaultIsolation(self.abort)
        self.throughput = self.states.throughput
        self.fragmentation = Fragmentation(self.tables)
        self.in_flight: deque[InFlightStep] = deque()  # oldest first
        self.step = 0
        self.num_idle_plans = 0  # in a row, without work although sequences wait
        self._outputs = Outputs()
        self._prompt_logprobs = PromptLogprobs()

    @property
    def running(self) -> list[Sequence]:
        """Sequences in order of admission; some may have ended since the last schedule()."""
        return self.states.running

    @property
    def num_preemptions(self) -> int:
        """Preempted sequences since the start."""
        return self.states.num_preemptions

    @property
    def idle_sleep(self) -> float:
        """Seconds that the caller may sleep because nothing runs and nothing may begin; 0: there is work."""
        if self.running or self.in_flight:
            return 0.0
        may_begin = not self.quarantine.waits if self.waiting else not self.states.preparing
        return 0.0 if may_begin else IDLE_SLEEP_S

    @property
    def num_running_requests(self) -> int:
        """Requests with at least one running sequence."""
        return self.states.num_running_requests

    # Requests.

    def open(self, page: CrashJournal) -> None:
        """Starts from the crash journal of the last engine. Called before anything else."""
        self.quarantine.open(page)

    def refuses(self, key: int) -> bool:
        """Whether an arriving request is quarantined: the caller rejects it and does not add it."""
        return self.quarantine.refuses(key)

    def add(self, request: Request, prepared: bool = True) -> None:
        """Adds a valid request (intake/validation.py) whose ids are not in use.

        prepared: False: it must not begin before prepared() is called, because its grammar is being compiled.
        """
        self.states.add(request, prepared)
        for sequence in _followers_first(request):
            reason, token = sequence.finish()
            if reason is not FinishReason.NONE:  # what was delivered before is all there is
                self._finish(sequence, reason, token)

    def prepared(self, request: Request) -> None:
        """Lets a live request begin that was added as one that is not prepared."""
        self.states.prepared(request)

    def abort(self, request: Request, indexes: Collection[int] = ()) -> None:
        """Ends some sequences of a request (none named: all) without output."""
        if not request.num_live:
            return
        ended = self.states.groups[request].ended_by(indexes)
        for sequence in _followers_first(request):
            if sequence.index in ended:
                self.states.end(sequence)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Ends a request, and reports the reason to its frontend."""
        if not request.num_live:
            return
        results = self.states.groups[request].results()
        if results is not None:
            self._outputs.finish_group(request, results, reason)
        for sequence in _followers_first(request):
            if results is not None:
                self.states.end(sequence)
            else:
                self._finish(sequence, reason)

    def set_deadline(self, request: Request, deadline_at: float | None) -> None:
        """Gives a live request another deadline; its place in the queue stays."""
        self.states.timeouts.set_deadline(request, deadline_at)

    def reset_cache(self) -> None:
        """Drops the keys and values of everything that does not run."""
        self.prefix_cache.reset()
        self.swap.drop_all()

    @property
    def has_finishes(self) -> bool:
        """Whether a sequence has ended since the last take_outputs()."""
        return bool(self._outputs.finishes)

    def take_outputs(self) -> Outputs:
        """Returns what to send to frontends since the last call."""
        outputs, self._outputs = self._outputs, Outputs()
        outputs.pauses = self.states.wait_causes.take_pauses()
        return outputs

    # A step.

    def schedule(self, now: float) -> Plan:
        """Plans a step. A plan without rows has nothing to do, and must not be executed."""
        self.states.wait_causes.step(now)
        self._expire(now)
        self.quarantine.review(now)
        self.states.drop_stopped()
        plan, batch = Plan(), Batch(self.max_num_batched_tokens)
        if self.draft_room.waits(self.in_flight[-1].plan if self.in_flight else None):
            return plan
        if self._schedule_running(plan, batch, now):
            self._schedule_waiting(plan, batch, now)
        self.states.wait_causes.decide(self.states, batch.budget)
        sampling = batch.write_columns(plan)
        if plan.rows:
            self.step += 1
            plan.step = self.step
            self.waiting.step()
            self.throughput.step(plan, now, batch.budget)
            self.fragmentation.step(self.step, self.states.holders())
            plan.removed_rows = self.rows.take_removed()
            prompts = self._prompt_logprobs.planned()
            self.in_flight.append(InFlightStep(plan, sampling, self.states.num_ended, prompts))
            self.quarantine.record(plan, self.in_flight[0].plan.step)
            self.num_idle_plans = 0
        else:
            if plan.swap_out_blocks:  # every other sequence was preempted for ones with pending tokens
                self.swap.drop_copies_of(plan)
            if self.waiting and not self.in_flight and not self.quarantine.waits:
                self.num_idle_plans += 1
        return plan

    def update(self, result: Result) -> list[Request]:
        """Takes the result of the oldest plan in flight.

        Sequences that have ended since it was made are skipped. Returns the requests that end because a
        sequence got NO_TOKEN; the caller reports them to their frontends.
        """
        oldest = self.in_flight.popleft()
        assert oldest.plan.step == result.step
        failed = self._abort_without_token(oldest, result) if NO_TOKEN in result.token_ids else []
        self.draft_room.note(oldest.plan, oldest.sampling, result)
        self._prompt_logprobs.update(result.prompt_logprobs, oldest.prompts, self._outputs)
        if planned := oldest.plan.sample_counts:
            drafts = result.row_drafts() or [NO_DRAFT] * len(planned)
            several = list(zip(result.tokens_by_row(), planned, drafts, strict=True))
            first = self._take_several(*self._live_samples(oldest, result, several))
        else:
            first = self._take_one_each(*self._live_samples(oldest, result, result.token_ids))
        if result.logprobs is not None:
            self._outputs.add_scores(first, oldest.sampling, result.sample_counts, result.logprobs)
        if not self.in_flight:
            self.quarantine.at_rest()
        if not self.requests:
            self.draft_room.idle()
        return failed

    def check_invariants(self) -> None:
        """Raises InvariantError when the state contradicts itself. Cost: all blocks, all live sequences."""
        if self.num_idle_plans > 1:  # in one, all may be preempted for a sequence of the next
            raise InvariantError("sequences wait while nothing runs")
        pending = Counter(sequence for step in self.in_flight for sequence in step.sampling)
        check_sequences(self.states, pending)

    # The parts of update().

    def _live_samples(
        self, step: InFlightStep, result: Result, samples: list[T]
    ) -> tuple[list[Sequence], list[T]]:
        """The sequences that sample for themselves and have not ended, with their samples.

        samples: of the plan's sample_rows, in order.
        """
        sequences, samples = take_vectors(step.sampling, samples, result, self.states, self._outputs)
        if result.beam_token_ids:
            sequences, samples = self._advance_groups(sequences, samples, result)
        if self.states.num_ended != step.num_ended:
            pairs = zip(sequences, samples, strict=True)
            live = [pair for pair in pairs if pair[0].status is not Status.ENDED]
            sequences, samples = [pair[0] for pair in live], [pair[1] for pair in live]
        return sequences, samples

    def _take_one_each(self, sequences: list[Sequence], token_ids: list[int]) -> int:
        """Takes one token for each sequence; returns the index of the first output entry."""
        first = self._outputs.add_tokens(sequences, token_ids)
        for index in take_one_each(sequences, token_ids):
            self._end_if_finished(sequences[index], first + index)
        return first

    def _take_several(self, sequences: list[Sequence], samples: list[tuple[list[int], int, RowDraft]]) -> int:
        """Takes the tokens of each sequence, of which so many were planned, and its draft; returns the index
        of the first output entry."""
        first = len(self._outputs.sequences)
        for sequence, (token_ids, num_planned, draft) in zip(sequences, samples, strict=True):
            position, taken = len(sequence.output), 0
            with self.faults.of(sequence.request):
                taken = sequence.take(token_ids, num_planned)
            entry = self._outputs.add_run(sequence, position, draft)
            if taken:
                self._end_if_finished(sequence, entry)
        return first

    def _end_if_finished(self, sequence: Sequence, entry: int) -> None:
        """Ends a sequence if its last token ends it. entry: of that token, in the outputs."""
        if sequence.status is Status.ENDED:  # together with a sibling, by a fault
            return
        reason, matched = FinishReason.NONE, 0
        with self.faults.of(sequence.request):
            reason, matched = sequence.finish()
        if reason is not FinishReason.NONE:
            self._outputs.finishes[entry] = reason, matched
            self.states.end(sequence)

    # The parts of schedule().

    def _expire(self, now: float) -> None:
        """Ends requests at their time limit with the output so far, and aborts those past their deadline."""
        for request, has_time_limit in self.states.timeouts.due(now):
            if has_time_limit:
                self.finish(request, FinishReason.TIME_LIMIT)
            else:
                self.abort(request)

    def _schedule_running(self, plan: Plan, batch: Batch, now: float) -> bool:
        """Schedules the running sequences; returns whether none was preempted."""
        before = self.states.num_preemptions
        self.row_preemption.make_room(plan)
        if needy := [sequence for sequence in self.running if sequence.num_tokens > sequence.num_slots]:
            self.slots.reserve_slots(needy, plan)
            going = self.slots.join_followers(plan)
            going += [sequence for sequence in self.running if sequence.num_tokens <= sequence.num_slots]
        else:
            going = self.running
        if going:  # all but the last one have computed their prompts
            last = going[-1]
            decoding = going if last.is_decoding else going[:-1]
            drafts = self.draft_room.add(decoding, len(going) - len(decoding), plan, batch)
            if not drafts:
                batch.add_decoding(going[:-1])
            if not drafts or decoding is not going:
                if self.states.num_preemptions == before:
                    self._schedule_overtakers(last, plan, batch, now)
                batch.add(last)
            self._advance_prompt(plan, batch, now)
        return self.states.num_preemptions == before

    def _schedule_overtakers(self, prompt: Sequence, plan: Plan, batch: Batch, now: float) -> None:
        """Admits waiting sequences ahead of a running prompt that takes more than one step."""
        room = self.overtaking.room(prompt, batch.budget)
        while room and self.rows.free and not self.quarantine.isolates:
            sequence = self.waiting.head()
            if sequence is None or not self.waiting.claim(prompt):
                return
            most, before = room, batch.budget
            if not self._schedule_next(sequence, plan, batch, now, most):
                return
            room -= before - batch.budget
            if sequence.status is not Status.ENDED:
                self.overtaking.num_overtakers += 1
                self.states.overtaken(prompt)

    def _schedule_waiting(self, plan: Plan, batch: Batch, now: float) -> None:
        """Admits waiting sequences in their order while rows, blocks and budget suffice."""
        while batch.budget and self.rows.free and (sequence := self.quarantine.head(self.waiting)):
            if not self._schedule_next(sequence, plan, batch, now):
                return  # it must wait, and so must those behind it

    def _schedule_next(
        self, sequence: Sequence, plan: Plan, batch: Batch, now: float, most: int | None = None
    ) -> bool:
        """Admits a waiting sequence, unless it must wait: then it returns False. most: tokens that it may
        compute; None: what the budget has left, in this step and the next ones."""
        cached = None
        with self.faults.of(sequence.request):
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
            waits = self.states.wait_causes.began(request)
            self._outputs.started.append(Start(request, now - request.arrival, found, waits))
            history = request.history
            history.began, history.waits, history.num_cached_tokens = now, waits, found

    def _advance_prompt(self, plan: Plan, batch: Batch, now: float) -> None:
        """Shares the prompt that the batch's last sequence has computed so far, and forks its siblings.

        Only the last sequence can be in its prompt: a prompt that is cut takes the rest of the budget, and no
        sequence is admitted behind it before it is complete.
        """
        sequence = batch.sequences[-1]
        self.prefix_cache.commit(sequence)
        history = sequence.request.history
        if history.prefill is None and history.began is not None and not sequence.num_new_tokens:
            history.prefill = now - history.began - history.paused
        if sequence.leads and not sequence.num_new_tokens:
            for sibling in self.states.fork_siblings(sequence):
                plan.forks.append(ForkRow(sibling.row, sequence.row, sibling.index))
                batch.add_fork(sibling)

    # Ends of sequences.

    def _finish(self, sequence: Sequence, reason: FinishReason, token: int = 0) -> None:
        """Ends a sequence without another token, and reports it to its frontend."""
        if sequence.status is not Status.ENDED:
            self._outputs.finish(sequence, reason, token)
            self.states.end(sequence)

    def _advance_groups(
        self, sampling: list[Sequence], samples: list[T], result: Result
    ) -> tuple[list[Sequence], list[T]]:
        """Groups choose among their candidates; returns the sequences that sample, with their samples."""
        sequences, samples, candidates = split_candidates(sampling, samples, result)
        for request, of_request in candidates.items():
            is_over = False
            with self.faults.of(request):
                is_over = self.states.groups[request].take(of_request, self.tables)
            if is_over:
                self.finish(request, FinishReason.NONE)
        return sequences, samples

    def _abort_without_token(self, step: InFlightStep, result: Result) -> list[Request]:
        """Aborts and returns the requests of sequences that got NO_TOKEN.

        The fault may lie in their blocks, in blocks of sequences that have ended, and in copies of either:
        all are forgotten, unless the worker says that it lies elsewhere (row_errors).
        """
        entries = {entry: step.sampling[entry] for entry in result.entries_with(NO_TOKEN)}
        live = {entry: each for entry, each in entries.items() if each.status is not Status.ENDED}
        failed = {sequence.request: None for sequence in live.values()}
        for entry, sequence in live.items():
            sequence.request.row_error = result.row_errors.get(entry, "")
        broken = [sequence for entry, sequence in entries.items() if entry not in result.row_errors]
        if broken:
            for sequence in broken + [sibling for request in failed for sibling in request.sequences]:
                self.prefix_cache.distrust(sequence)
            self.swap.drop_all()
        for request in failed:
            self.abort(request)
        return list(failed)


def _followers_first(request: Request) -> list[Sequence]:
    """Returns the sequences in an order in which no sibling is promoted that is about to end as well."""
    return request.sequences[::-1]
