"""Where sequences are, and what they hold there: every change of a sequence's status is made here.

    WAITING ──run──> RUNNING ──end──> ENDED        FORKING ──run──> RUNNING
       ^                │
       └────preempt─────┘

A running sequence holds a row and blocks. One that waits holds nothing. One that is to fork from its
leader's prompt holds a row while the leader runs, so that it can start the moment the prompt is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine_core.beam_search.sequences import BeamGroup
from engine_core.kv_cache.block_tables import BlockTables
from engine_core.kv_cache.host_swap import SwapSpace
from engine_core.kv_cache.prefix_cache import PrefixCache
from engine_core.quarantine.quarantine import Quarantine
from engine_core.queue.base import WaitingQueue
from engine_core.request import NO_ROW, Request, Sequence, Status
from engine_core.scheduler.request_index import RequestIndex
from engine_core.scheduler.throughput import Throughput
from engine_core.scheduler.timeouts import Timeouts
from engine_core.sequence_group import ParallelSampling, SequenceGroup
from engine_core.step.plan import Plan
from engine_core.step.row_slots import RowSlots


class SequenceStates:
    """The requests in flight, and their sequences in their places."""

    def __init__(
        self,
        num_rows: int,
        tables: BlockTables,
        prefix_cache: PrefixCache,
        swap: SwapSpace,
        waiting: WaitingQueue,
    ) -> None:
        """waiting: empty; its policy is the order of admission."""
        self.quarantine = Quarantine(num_rows)
        self.rows = RowSlots(num_rows)
        self.requests = RequestIndex()
        self.timeouts = Timeouts()
        self.waiting = waiting
        self.throughput = Throughput()
        self.running: list[Sequence] = []  # in order of admission; see drop_stopped()
        self.groups: dict[Request, SequenceGroup] = {}
        self.leaders: dict[Sequence, SequenceGroup] = {}  # that run, and may have followers
        self.num_running_requests = 0
        self.num_preemptions = 0
        self.num_ended = 0
        """Sequences that have ended since the start."""
        self.on_request_end: Callable[[Request], None] | None = None
        """Is told of each request whose last sequence has ended; for quotas."""
        self._has_stopped = False  # somebody, since drop_stopped()
        self.tables = tables
        self.prefix_cache = prefix_cache
        self.swap = swap

    def add(self, request: Request) -> None:
        """A request arrives."""
        self.groups[request] = (
            ParallelSampling(request) if request.beam_search is None else BeamGroup(request)
        )
        self.requests.add(request)
        self.timeouts.add(request)
        self.quarantine.arrived(request)
        for sequence in request.sequences:
            if sequence.status is Status.WAITING:
                self.waiting.add(sequence, self._num_kept_tokens(sequence))

    def admit(self, sequence: Sequence, slots: int, cached: list[int], plan: Plan) -> None:
        """A sequence that waits gets a row and blocks, its siblings theirs, and runs.

        slots: for which it gets blocks. cached: blocks that hold its first tokens. All of it is there.
        plan: brings back what the swap space kept.
        """
        self.waiting.remove(sequence)
        self.tables.open(sequence, slots, cached)
        self.prefix_cache.count(sequence)
        self.swap.swap_in(sequence, plan)
        siblings = sequence.request.forking if sequence.leads else ()
        for each in (sequence, *siblings):
            each.row = self.rows.take()
        self._run(sequence)
        self.quarantine.admitted(sequence.request, [each.row for each in (sequence, *siblings)])

    def holders(self) -> Iterator[Sequence]:
        """Whoever holds blocks, after drop_stopped()."""
        yield from self.running
        for group in self.leaders.values():
            yield from group.followers

    def fork_siblings(self, leader: Sequence) -> list[Sequence]:
        """The prompt of a request is complete: its other sequences, which now run, on its blocks.

        Beams fork later, when the search has chosen; until then nobody goes on.
        """
        siblings = self.groups[leader.request].fork(leader, self.tables)
        for sibling in siblings:
            self._run(sibling)
        return siblings

    def preempt(self, victim: Sequence, plan: Plan) -> None:
        """A running sequence loses row and blocks, and waits to go on, before all others. (It stands in
        `running` until drop_stopped(), which must come before it can be admitted.)

        plan: copies what it has computed to the swap space, where that pays.
        """
        group = self.groups[victim.request]
        victim.drop_uncertain()
        if group.can_swap:
            self.swap.swap_out(victim, plan)
        self._stop(victim)
        self.waiting.stopped(victim)
        self.throughput.stopped(victim)
        victim.set_computed(0)
        group.preempted()
        victim.status = Status.WAITING
        victim.request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add_front(victim, self._num_kept_tokens(victim))

    def end(self, sequence: Sequence) -> None:
        """Ends a sequence, wherever it is, and takes back what it holds. Idempotent."""
        request = sequence.request
        if sequence.status is Status.ENDED:
            return
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
            sequence.drop_pending()
            self.waiting.stopped(sequence)
            self.throughput.stopped(sequence)
        elif sequence.status is Status.FORKING:
            del request.forking[sequence]
            self._take_reserved_row(sequence)
        else:
            self.waiting.remove(sequence)
            self.swap.drop(sequence)
        sequence.status = Status.ENDED
        self.num_ended += 1
        if sequence.leads and request.forking:
            self._pass_lead(request)
        request.num_live -= 1
        request.num_made += len(sequence.output)
        if not request.num_live:
            self.quarantine.ended(request, self.groups[request].is_finished)
            self.requests.remove(request)
            self.timeouts.remove(request)
            request.sequences.clear()  # they refer to the request: without this only the gc frees them
            self.groups.pop(request).clear()
        if self.on_request_end is not None and not request.num_live:
            self.on_request_end(request)

    def num_tokens_lost(self, sequence: Sequence) -> int:
        """Tokens that must be computed again if a running sequence is preempted."""
        return self.groups[sequence.request].num_tokens_lost(sequence, self.tables)

    def drop_stopped(self) -> None:
        """From here on `running` has only sequences that run: one pass for all that stopped."""
        if self._has_stopped:
            self._has_stopped = False
            self.running = [sequence for sequence in self.running if sequence.status is Status.RUNNING]

    def _run(self, sequence: Sequence) -> None:
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        self.waiting.started(sequence)
        self.throughput.started(sequence)
        group = self.groups[sequence.request]
        if group.leads_others:
            self.leaders[sequence] = group
        sequence.request.num_running += 1
        if sequence.request.num_running == 1:
            self.num_running_requests += 1

    def _stop(self, sequence: Sequence) -> None:
        """Takes row and blocks from a running sequence, and the rows that its siblings reserve."""
        request = sequence.request
        self._has_stopped = True
        self.rows.give_back(sequence.row, begun=True)
        sequence.row = NO_ROW
        self.prefix_cache.commit(sequence)
        self.tables.close(sequence)
        if sequence.leads:
            for sibling in request.forking:
                self._take_reserved_row(sibling)
        self.leaders.pop(sequence, None)
        request.num_running -= 1
        if not request.num_running:
            self.num_running_requests -= 1
            self.quarantine.stopped(request)

    def _take_reserved_row(self, sibling: Sequence) -> None:
        """Frees the row of a sequence that forks from a leader, and the blocks of a follower."""
        if sibling.row != NO_ROW:
            self.rows.give_back(sibling.row, begun=self.groups[sibling.request].followers_have_rows)
            sibling.row = NO_ROW
            self.tables.close(sibling)

    def _pass_lead(self, request: Request) -> None:
        """The leader has ended before its siblings could fork: the first of them computes the prompt.

        It begins anew (the worker's row was the leader's), but at the head of the queue: its turn
        had come, or comes with that of its request.
        """
        heir = next(iter(request.forking))
        del request.forking[heir]
        heir.leads = True
        heir.status = Status.WAITING
        self.waiting.add_front(heir, self._num_kept_tokens(heir))

    def _num_kept_tokens(self, sequence: Sequence) -> int:
        """Tokens that a waiting sequence need not compute (again), as things are now."""
        cached = len(self.prefix_cache.find(sequence)) * self.tables.block_size
        return max(cached, self.swap.num_tokens(sequence))
