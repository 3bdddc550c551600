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

from engine_core.errors import InvariantError
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.block_tables import BlockTables, Fragmentation
from engine_core.kv_cache.cache_changes import KeptChanges
from engine_core.kv_cache.host_swap import UNMEASURED, SwapCosts, SwapSpace
from engine_core.kv_cache.prefix_cache import Contents, PrefixCache
from engine_core.media.encoder_cache import EncoderCache
from engine_core.quarantine.crash_journal import CrashJournal
from engine_core.quarantine.quarantine import IDLE_SLEEP_S
from engine_core.queue.base import FAIR, FIRST_COME, FirstComeQueue, WaitingQueue
from engine_core.queue.fair import FairQueue
from engine_core.queue.token_counters import EQUAL, Weights
from engine_core.request import FinishReason, Request, Sequence
from engine_core.scheduler.invariants import check_sequences
from engine_core.scheduler.outputs.outputs import Outputs
from engine_core.scheduler.outputs.prompt_logprobs import PromptLogprobs
from engine_core.scheduler.planning.adapter_slots import TURN
from engine_core.scheduler.planning.step_batch import Batch
from engine_core.scheduler.planning.step_planner import StepPlanner
from engine_core.scheduler.request_ends import FaultIsolation, RequestEnds, followers_first
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.scheduler.step_results import InFlightStep, StepResults
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from pagewire.internal.v1.worker_pb2 import KeptCache


class Scheduler:
    """Requests, their order, their rows and blocks. schedule(), execute the plan, update(); repeat.

    `states` holds the state of each sequence, `planner` fills plans, `results` takes what comes of them, and
    `ends` ends requests early.
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
        share_rows: bool = False,
        state_checkpoints: int = 0,
        burst_seconds: float = 0.0,
        max_adapters_per_step: int = 0,
        adapter_turn: int = TURN,
        whole_prompts: bool = False,
        encoder_cache_tokens: int = 0,
        max_num_encoder_tokens: int = 0,
        whole_media: bool = False,
        stages: int = 1,
        micro_batch_rows: int = 1,
    ) -> None:
        """policy, weights: the order of admission; see queue/. samples_per_row,
        speculative_tokens_per_step: see DraftRoom. preempt_rows, share_rows: see RowPreemption and
        RowSharing. state_checkpoints: see PrefixCache. burst_seconds: see Bursts. max_adapters_per_step,
        adapter_turn: see AdapterSlots. whole_prompts: see StepPlanner; needs prefix_cache = False and
        num_host_blocks = 0. encoder_cache_tokens, max_num_encoder_tokens: see EncoderCache; 0:
        max_num_batched_tokens. whole_media: see EncoderCache; no item has more tokens than a step has beside
        one of each other row. stages, micro_batch_rows: see MicroBatches."""
        assert not (whole_prompts and (prefix_cache or num_host_blocks)), "a row would begin in parts"
        self.max_num_batched_tokens = max_num_batched_tokens
        # With no more rows than tokens in the budget, every running sequence advances in every step.
        self.num_rows = min(max_num_seqs, max_num_batched_tokens)
        self.pool = BlockPool(num_blocks)
        self.tables = BlockTables(self.pool, block_size)
        self.prefix_cache = PrefixCache(
            self.pool, block_size, enabled=prefix_cache, num_checkpoints=state_checkpoints
        )
        self.swap = SwapSpace(num_host_blocks, swap_costs, self.tables)
        assert policy in (FAIR, FIRST_COME), policy
        self.waiting: WaitingQueue = FairQueue(weights) if policy == FAIR else FirstComeQueue()
        self.states = SequenceStates(self.num_rows, self.tables, self.prefix_cache, self.swap, self.waiting)
        self.quarantine = self.states.quarantine
        self.rows = self.states.rows
        self.requests = self.states.requests
        self.ends = RequestEnds(self.states)
        self.faults = FaultIsolation(self.ends.abort)
        self._prompt_logprobs = PromptLogprobs()
        self.encoder = EncoderCache(
            encoder_cache_tokens or max_num_batched_tokens,
            max_num_encoder_tokens or max_num_batched_tokens,
            whole_media,
        )
        self.planner = StepPlanner(
            self.states,
            self.faults,
            self._prompt_logprobs,
            max_num_batched_tokens=max_num_batched_tokens,
            samples_per_row=samples_per_row,
            speculative_tokens_per_step=speculative_tokens_per_step,
            preempt_rows=preempt_rows,
            share_rows=share_rows,
            burst_seconds=burst_seconds,
            max_adapters_per_step=max_adapters_per_step,
            adapter_turn=adapter_turn,
            whole_prompts=whole_prompts,
            encoder=self.encoder,
            stages=stages,
            micro_batch_rows=micro_batch_rows,
        )
        self.results = StepResults(self.states, self.ends, self.faults)
        self.throughput = self.states.throughput
        self.fragmentation = Fragmentation(self.tables)
        self.in_flight: deque[InFlightStep] = deque()  # oldest first
        self.step = 0
        self.num_idle_plans = 0  # in a row, without work although sequences wait
        self.waits_for_held = False
        """In the last plan sequences waited and nothing ran, while blocks were held for other cores, or for
        copies of theirs."""

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
        if self.waits_for_held:
            return IDLE_SLEEP_S
        may_begin = not self.quarantine.waits if self.waiting else not self.states.preparing
        return 0.0 if may_begin else IDLE_SLEEP_S

    @property
    def most_ahead(self) -> int:
        """Plans in flight behind which one more is worth making: as many as the worker can compute at the
        same time."""
        return self.planner.micro_batches.width

    @property
    def usual_output(self) -> float:
        """Tokens that a sequence gets while it runs, by those that have ended lately: one a step, or one
        for a step of each group."""
        return self.throughput.run_steps.value / self.planner.micro_batches.width

    @property
    def num_running_requests(self) -> int:
        """Requests with at least one running sequence."""
        return self.states.num_running_requests

    # Requests.

    def open(self, journal: CrashJournal) -> None:
        """Starts from the crash journal of the last engine. Called before anything else."""
        self.quarantine.open(journal)

    def refuses(self, key: int) -> bool:
        """Whether an arriving request is quarantined: the caller rejects it and does not add it."""
        return self.quarantine.refuses(key)

    def add(self, request: Request, prepared: bool = True) -> None:
        """Adds a valid request (intake/validation.py) whose ids are not in use.

        prepared: False: it must not begin before prepared() is called: its grammar is being compiled, or its
        adapter loaded.
        """
        self.states.add(request, prepared)
        for sequence in followers_first(request):
            reason, token = sequence.finish()
            if reason is not FinishReason.NONE:  # what was delivered before is all there is
                self.ends.finish_sequence(sequence, reason, token)

    def prepared(self, request: Request) -> None:
        """Lets a live request begin that was added as one that is not prepared."""
        self.states.wait_causes.queued(request)
        self.states.prepared(request)

    def abort(self, request: Request, indexes: Collection[int] = ()) -> None:
        """Ends some sequences of a request (none named: all) without output."""
        self.ends.abort(request, indexes)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Ends a request, and reports the reason to its frontend."""
        self.ends.finish(request, reason)

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
        return bool(self.states.outputs.finishes)

    def take_outputs(self) -> Outputs:
        """Returns what to send to frontends since the last call."""
        return self.states.take_outputs()

    def track_cache(self, changes: KeptChanges, kept: KeptCache) -> tuple[Contents, Contents]:
        """Has the worker follow the prefix cache, which goes on with what an adopted one holds. To
        be called before open()."""
        return self.prefix_cache.track(changes, kept)

    # A step.

    def schedule(self, now: float) -> Plan:
        """Plans a step. A plan without rows has nothing to do, and must not be executed."""
        self.states.wait_causes.step(now)
        self.ends.expire(now)
        self.quarantine.review(now)
        self.states.drop_stopped()
        self.prefix_cache.begin_plan()
        plan, batch = Plan(), Batch(self.max_num_batched_tokens)
        if self.planner.draft_room.waits(self.in_flight[-1].plan if self.in_flight else None):
            return plan
        self.planner.fill(plan, batch, now, in_flight=bool(self.in_flight))
        self.states.wait_causes.decide(
            self.waiting,
            len(self.rows.free),
            batch.budget,
            isolates=self.quarantine.isolates,
            rows_needed=self.planner.admission.rows_needed,
            lacks_slot=self.planner.adapter_slots.are_short,
            lacks_encoder=self.encoder.is_short,
        )
        sampling = batch.write_columns(plan)
        if plan.rows:
            self.step += 1
            plan.step = self.step
            self.planner.micro_batches.mark(plan)
            if self.planner.micro_batches.ends_round:
                self.waiting.step()
            self.throughput.step(plan, now, batch.budget)
            self.fragmentation.step(self.step, self.states.holders())
            plan.removed_rows = self.rows.take_removed()
            prompts = self._prompt_logprobs.planned()
            self.in_flight.append(InFlightStep(plan, sampling, self.states.num_ended, prompts))
            self.quarantine.record(plan, self.in_flight[0].plan.step)
            self.num_idle_plans = 0
            self.waits_for_held = False
        else:
            if plan.swap_out_blocks:  # every other sequence was preempted for ones with pending tokens
                self.swap.drop_copies_of(plan)
            is_idle = bool(self.waiting) and not (self.in_flight or self.quarantine.waits)
            self.num_idle_plans += is_idle and not self.tables.held
            self.waits_for_held = is_idle and not self.running and bool(self.tables.held)
        return plan

    def update(self, result: Result) -> list[Request]:
        """Takes the result of the oldest plan in flight.

        Sequences that have ended since it was made are skipped. Returns the requests that end because a
        sequence got NO_TOKEN; the caller reports them to their frontends.
        """
        oldest = self.in_flight.popleft()
        assert oldest.plan.step == result.step
        failed, distrusted = self.results.abort_without_token(oldest, result)
        for request in distrusted:
            self.encoder.distrust(request)
        self.planner.draft_room.note(oldest.plan, oldest.sampling, result)
        self.planner.bursts.note(oldest.plan, result)
        self._prompt_logprobs.update(result.prompt_logprobs, oldest.prompts, self.states.outputs)
        self.results.take(oldest, result)
        if not self.in_flight:
            self.quarantine.at_rest()
        if not self.requests:
            self.planner.draft_room.idle()
        return failed

    def check_invariants(self) -> None:
        """Raises InvariantError when the state contradicts itself. Cost: all blocks, all live sequences."""
        if self.num_idle_plans > 1:  # in one, all may be preempted for a sequence of the next
            raise InvariantError("sequences wait while nothing runs")
        pending = Counter(sequence for step in self.in_flight for sequence in step.sampling)
        check_sequences(self.states, pending)
        self.planner.adapter_slots.check_invariants()
        self.encoder.check_invariants()
