"""The scheduler: which sequence computes how many tokens in the next step.

There are no phases. Each sequence has `num_tokens` and `num_computed_tokens`, and a step moves the
second toward the first within a budget of tokens. Where it gets there, a token is sampled. A prompt
in chunks, a decoding sequence, one that was preempted, and one that comes with delivered output are
all that one rule; and one whose prefix is in the cache begins with computed tokens.

Plain Python: no socket, no clock, no torch. `now` is in seconds and comes from the caller; the same
calls give the same plans.
"""

from __future__ import annotations

from collections.abc import Collection

from engine_core.batch import Batch
from engine_core.block_pool import BlockPool
from engine_core.block_tables import BlockTables
from engine_core.expiry import Expiry
from engine_core.in_flight import InFlight
from engine_core.invariants import check_scheduler
from engine_core.outputs import Outputs, Start
from engine_core.plan import ForkRow, NewRow, Plan
from engine_core.prefix_cache import PrefixCache
from engine_core.request import NO_ROW, NO_TOKEN, FinishReason, Request, Sequence, Status
from engine_core.waiting import WaitingQueue


class Scheduler:
    """Requests, their order, their rows and blocks. schedule(), execute the plan, update(); repeat."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_cache: bool = True,
    ) -> None:
        self.max_num_batched_tokens = max_num_batched_tokens
        # With no more rows than tokens in the budget, every running sequence advances in every step.
        self.num_rows = min(max_num_seqs, max_num_batched_tokens)
        self.pool = BlockPool(num_blocks)
        self.tables = BlockTables(self.pool, block_size)
        self.prefix_cache = PrefixCache(self.pool, block_size, enabled=prefix_cache)
        self.requests = InFlight()
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []  # in order of admission; schedule() drops those that ended
        self.step = 0
        self.num_running_requests = 0
        self.num_preemptions = 0
        self.free_rows = list(range(self.num_rows - 1, -1, -1))
        self._expiry = Expiry()
        self._outputs = Outputs()
        self._removed_rows: list[int] = []  # since the last plan
        self._sampling: list[Sequence] = []  # of the last plan, in the order of its sample_rows
        self._some_ended = False  # sequences in `running` or `_sampling` have ended

    # Requests come and go.

    def add(self, request: Request) -> None:
        """A request arrives. Its names are not in use; what it asks for can be met (see validation)."""
        self.requests.add(request)
        self._expiry.add(request)
        for sequence in request.sequences:
            if sequence.status is Status.WAITING:
                self.waiting.add(sequence, self._num_cached_tokens(sequence))
        for sequence in _followers_first(request):
            reason, token = sequence.finish()
            if reason is not FinishReason.NONE:  # what was delivered before is all there is
                self._finish(sequence, reason, token)

    def abort(self, request: Request, indexes: Collection[int] = ()) -> None:
        """Ends some sequences (none named: all) of a request without a word."""
        for sequence in _followers_first(request):
            if not indexes or sequence.index in indexes:
                self._release(sequence)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Ends a request, and tells its frontend why."""
        for sequence in _followers_first(request):
            self._finish(sequence, reason)

    @property
    def has_finishes(self) -> bool:
        """Whether some sequence has ended since take_outputs() was called."""
        return bool(self._outputs.finishes)

    def take_outputs(self) -> Outputs:
        """What the frontends are to be told since the last call."""
        outputs, self._outputs = self._outputs, Outputs()
        return outputs

    # A step.

    def schedule(self, now: float) -> Plan:
        """Plans a step. A plan without rows means that there is nothing to do: it is not executed."""
        self._expire(now)
        self._drop_ended()
        plan, batch = Plan(), Batch(self.max_num_batched_tokens)
        if self._schedule_running(plan, batch):
            self._schedule_waiting(plan, batch, now)
        self._sampling = batch.write_columns(plan)
        if plan.rows:
            self.step += 1
            plan.step = self.step
            plan.removed_rows, self._removed_rows = self._removed_rows, []
        return plan

    def update(self, token_ids: list[int]) -> list[Request]:
        """Takes in what the plan sampled: one token for each of its sample_rows.

        A sequence that has ended since it was planned is passed over. Returns the requests that have
        ended because there was NO_TOKEN for them: nobody else will tell their frontends.
        """
        sequences, self._sampling = self._sampling, []
        failed = self._abort_without_token(sequences, token_ids) if NO_TOKEN in token_ids else []
        if self._some_ended:
            pairs = zip(sequences, token_ids, strict=True)
            live = [pair for pair in pairs if pair[0].status is Status.RUNNING]
            sequences, token_ids = [pair[0] for pair in live], [pair[1] for pair in live]
        entry = self._outputs.add_tokens(sequences, token_ids)
        for sequence, token in zip(sequences, token_ids, strict=True):
            sequence.output.append(token)
            sequence.num_tokens += 1
            if sequence.num_tokens >= sequence.limit or token in sequence.stops:
                reason, matched = sequence.finish()
                if reason is not FinishReason.NONE:
                    self._outputs.finishes[entry] = reason, matched
                    self._release(sequence)
            entry += 1
        return failed

    def check_invariants(self) -> None:
        """Raises InvariantError when the books do not balance. Cost: all blocks, all live sequences."""
        check_scheduler(self)

    # The parts of schedule().

    def _expire(self, now: float) -> None:
        """Ends what has run out of time: with what there is, or silently when nobody waits any more."""
        for request, has_time_limit in self._expiry.due(now):
            if has_time_limit:
                self.finish(request, FinishReason.TIME_LIMIT)
            else:
                self.abort(request)

    def _drop_ended(self) -> None:
        if self._some_ended:
            self.running = [sequence for sequence in self.running if sequence.status is Status.RUNNING]
            self._some_ended = False

    def _schedule_running(self, plan: Plan, batch: Batch) -> bool:
        """All that run go on; whether that was so without preempting anyone."""
        before = self.num_preemptions
        for sequence in self.running:  # preemption shortens the list at its end
            if sequence.num_tokens > sequence.num_slots and not self._make_room(sequence, plan):
                break
            batch.add(sequence)
        self._advance_prompt(plan, batch)
        return self.num_preemptions == before

    def _schedule_waiting(self, plan: Plan, batch: Batch, now: float) -> None:
        """Those that wait begin, in their order, as long as rows, blocks and budget suffice."""
        while batch.budget and (sequence := self.waiting.head()):
            cached = self.prefix_cache.find(sequence)
            if not self._fits(sequence, cached):
                return
            self._admit(sequence, cached, plan, now)
            batch.add(sequence)
            self._advance_prompt(plan, batch)

    def _advance_prompt(self, plan: Plan, batch: Batch) -> None:
        """The last sequence of the batch may have computed some of its prompt: others can go on from it.

        Only the last one can be in its prompt: a prompt that is cut takes all that is left of the budget,
        and nobody is admitted behind it before it is complete.
        """
        if batch.sequences:
            sequence = batch.sequences[-1]
            self.prefix_cache.commit(sequence)
            if sequence.leads and not sequence.num_new_tokens:
                self._fork_siblings(sequence, plan, batch)

    def _fork_siblings(self, leader: Sequence, plan: Plan, batch: Batch) -> None:
        """The prompt of a request is complete: all its sequences go on from it."""
        for sibling in leader.request.forking:
            self.tables.fork(leader, sibling)
            plan.forks.append(ForkRow(sibling.row, leader.row, sibling.index))
            batch.add_fork(sibling)
            self._run(sibling)
        leader.request.forking.clear()
        leader.leads = False

    # Admission and preemption.

    def _fits(self, sequence: Sequence, cached: list[int]) -> bool:
        """Whether there are rows for the sequence and its siblings, and blocks for the whole prompt.

        Of the cached ones, those that others hold cost nothing, and those that are free what all cost.

        Besides, a free block for every running sequence and sibling: they will ask for one soon, and
        the last one admitted would be preempted for it. An empty engine admits whatever is valid.
        """
        siblings = len(sequence.request.forking) if sequence.leads else 0
        if 1 + siblings > len(self.free_rows):
            return False
        blocks = self.tables.missing(_slots_at_admission(sequence), cached) + siblings + len(self.running)
        return blocks <= self.pool.num_free or not self.running

    def _admit(self, sequence: Sequence, cached: list[int], plan: Plan, now: float) -> None:
        request = sequence.request
        self.waiting.remove(sequence)
        self.tables.open(sequence, _slots_at_admission(sequence), cached)
        self.prefix_cache.count(sequence)
        sequence.row = self.free_rows.pop()
        self._run(sequence)
        plan.new_rows.append(
            NewRow(
                row=sequence.row,
                token_ids=sequence.token_ids(),
                prompt_len=len(request.prompt),
                blocks=sequence.blocks.copy(),
                sequence_index=sequence.index,
                parameters=request.parameters,
            )
        )
        if sequence.leads:
            for sibling in request.forking:
                sibling.row = self.free_rows.pop()
        if not request.scheduled:
            request.scheduled = True
            found = min(sequence.num_computed_tokens, len(request.prompt))
            self._outputs.started.append(Start(request, now - request.arrival, found))

    def _num_cached_tokens(self, sequence: Sequence) -> int:
        return len(self.prefix_cache.find(sequence)) * self.tables.block_size

    def _run(self, sequence: Sequence) -> None:
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        sequence.request.num_running += 1
        if sequence.request.num_running == 1:
            self.num_running_requests += 1

    def _make_room(self, sequence: Sequence, plan: Plan) -> bool:
        """Gets a running sequence the slots it lacks; False when it had to be preempted itself.

        It has filled its blocks: here they become known, and nothing is done for it in other steps.
        """
        self.prefix_cache.commit(sequence)
        while not self.tables.reserve(sequence, sequence.num_tokens, plan):
            victim = self.running.pop()  # the last one admitted: it has the least to lose
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        """A running sequence loses row and blocks, and waits to be computed again, before all others."""
        self._stop(victim)
        victim.num_computed_tokens = 0
        victim.status = Status.WAITING
        self.waiting.add_front(victim, self._num_cached_tokens(victim))
        self.num_preemptions += 1

    # The end of a sequence.

    def _finish(self, sequence: Sequence, reason: FinishReason, token: int = 0) -> None:
        """Ends a sequence without another token, and tells its frontend."""
        if sequence.status is not Status.ENDED:
            self._outputs.finish(sequence, reason, token)
            self._release(sequence)

    def _abort_without_token(self, sequences: list[Sequence], token_ids: list[int]) -> list[Request]:
        failed = {
            sequence.request: None
            for sequence, token in zip(sequences, token_ids, strict=True)
            if token == NO_TOKEN and sequence.status is Status.RUNNING
        }
        for request in failed:
            self.prefix_cache.distrust(request)  # what is wrong may be in its blocks
            self.abort(request)
        return list(failed)

    def _release(self, sequence: Sequence) -> None:
        """Ends a sequence, wherever it is, and takes back what it holds. Idempotent."""
        request = sequence.request
        if sequence.status is Status.ENDED:
            return
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
            self._some_ended = True
        elif sequence.status is Status.FORKING:
            del request.forking[sequence]
            self._take_row_back(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = Status.ENDED
        if sequence.leads and request.forking:
            self._pass_lead(request)
        request.num_live -= 1
        if not request.num_live:
            self.requests.remove(request)
            self._expiry.remove(request)
            request.sequences.clear()  # they refer to the request: without this only the gc frees them

    def _stop(self, sequence: Sequence) -> None:
        """Takes row and blocks from a running sequence, and the rows that its siblings reserve."""
        request = sequence.request
        self._removed_rows.append(sequence.row)
        self._take_row_back(sequence)
        self.prefix_cache.commit(sequence)
        self.tables.close(sequence)
        if sequence.leads:
            for sibling in request.forking:
                self._take_row_back(sibling)
        request.num_running -= 1
        if not request.num_running:
            self.num_running_requests -= 1

    def _take_row_back(self, sequence: Sequence) -> None:
        if sequence.row != NO_ROW:
            self.free_rows.append(sequence.row)
            sequence.row = NO_ROW

    def _pass_lead(self, request: Request) -> None:
        """The leader has ended before its siblings could fork: the first of them computes the prompt.

        It begins anew (the worker's row was the leader's), but at the head of the queue: its turn
        had come, or comes with that of its request.
        """
        heir = next(iter(request.forking))
        del request.forking[heir]
        heir.leads = True
        heir.status = Status.WAITING
        self.waiting.add_front(heir, self._num_cached_tokens(heir))


def _slots_at_admission(sequence: Sequence) -> int:
    """All tokens and the next one; but the last token of a sequence needs no slot."""
    return min(sequence.num_tokens + 1, sequence.limit - 1)


def _followers_first(request: Request) -> list[Sequence]:
    """Its sequences in an order in which the lead is never passed to one that ends as well."""
    return request.sequences[::-1]
