"""The state machine of sequences: every change of a Status is made here.

A running sequence holds a row and blocks, a waiting one nothing. A forking sequence has a reserved row while
its leader runs, so that it can start as soon as the prompt is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine_core.kv_cache.block_tables import BlockTables
from engine_core.kv_cache.host_swap import SwapSpace
from engine_core.kv_cache.prefix_cache import PrefixCache
from engine_core.media.memory import MediaMemory
from engine_core.quarantine.quarantine import Quarantine
from engine_core.queue.base import WaitingQueue
from engine_core.request import NO_ROW, Request, Sequence, Status
from engine_core.scheduler.outputs.outputs import Outputs
from engine_core.scheduler.outputs.wait_causes import WaitCauses
from engine_core.scheduler.states.beam_group import BeamGroup
from engine_core.scheduler.states.request_index import RequestIndex, Timeouts
from engine_core.scheduler.states.sequence_group import RowSlots, SequenceGroup
from engine_core.scheduler.states.throughput import Throughput
from engine_core.step.plan import Plan


class SequenceStates:
    """The requests in flight, and the states of their sequences."""

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
        self.media = MediaMemory()
        self.timeouts = Timeouts()
        self.waiting = waiting
        self.throughput = Throughput()
        self.running: list[Sequence] = []
        """In order of admission, but for a prompt that others have overtaken; see drop_stopped()."""
        self.groups: dict[Request, SequenceGroup] = {}
        self.leaders: dict[Sequence, SequenceGroup] = {}  # that run, and may have followers
        self.wait_causes = WaitCauses()
        self.preparing: set[Request] = set()
        """Requests whose grammar or adapter the worker lacks: their sequences wait, not in the queue yet."""
        self.outputs = Outputs()
        """What frontends are to be told since take_outputs()."""
        self.num_running_requests = 0
        self.num_preemptions = 0
        self.num_ended = 0
        """Sequences that have ended since the start."""
        self.on_request_end: Callable[[Request], None] | None = None
        """Called with each request whose last sequence has ended; for quotas."""
        self._has_stopped = False  # since drop_stopped()
        self.tables = tables
        self.prefix_cache = prefix_cache
        self.swap = swap

    def add(self, request: Request, prepared: bool = True) -> None:
        """A request arrives. prepared: False: it must not begin before prepared() is called."""
        self.groups[request] = (SequenceGroup if request.beam_search is None else BeamGroup)(request)
        self.requests.add(request)
        self.media.add(request)
        self.timeouts.add(request)
        self.wait_causes.arrived(request)
        self.preparing.add(request)
        if prepared:
            self.prepared(request)

    def prepared(self, request: Request) -> None:
        """A request may begin: it takes its turn in the queue."""
        self.preparing.remove(request)
        self.quarantine.arrived(request)
        for sequence in request.sequences:
            if sequence.status is Status.WAITING:
                self.waiting.add(sequence, self._num_kept_tokens(sequence))

    def admit(self, sequence: Sequence, slots: int, cached: list[int], plan: Plan) -> None:
        """Gives a waiting sequence a row and blocks, reserves rows for its siblings, and lets it run.

        slots: to allocate blocks for; the caller has checked that rows and blocks suffice. cached: blocks
        that hold its first tokens. plan: copies its blocks back from the swap space.
        """
        self.waiting.remove(sequence)
        if sequence.leads and sequence.request.beam_search is None:
            self._part_with(sequence.request, len(self.rows.free) - 1)
        self.tables.open(sequence, slots, cached)
        self.prefix_cache.count(sequence)
        self.swap.swap_in(sequence, plan)
        siblings = sequence.request.forking if sequence.leads else ()
        for each in (sequence, *siblings):
            each.row = self.rows.take()
        self.prefix_cache.restore_state(sequence, plan)
        self._run(sequence)
        self.quarantine.admitted(sequence.request, [each.row for each in (sequence, *siblings)])

    def overtaken(self, prompt: Sequence) -> None:
        """Puts a running sequence behind those that were admitted after it."""
        self.running.remove(prompt)
        self.running.append(prompt)

    def holders(self) -> Iterator[Sequence]:
        """Sequences that hold blocks. To be called after drop_stopped()."""
        yield from self.running
        for group in self.leaders.values():
            yield from group.followers

    def fork_siblings(self, leader: Sequence) -> list[Sequence]:
        """Forks the siblings of a leader whose prompt is computed; returns those that run from now on."""
        siblings = self.groups[leader.request].fork(leader, self.tables)
        for sibling in siblings:
            self._run(sibling)
        return siblings

    def preempt(self, victim: Sequence, plan: Plan, *, ends_turn: bool = False) -> None:
        """Preempts a running sequence: frees its row and blocks, and puts it at the head of the queue.

        It stays in `running` until drop_stopped(), which must be called before it can be admitted again.
        plan: copies its computed blocks to the swap space, where that pays. ends_turn: the turn of the
        adapter is over; this may happen any number of times, and does not count in num_preemptions of the
        sequence and the request: they neither keep rows for it later nor need more room.
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
        if not victim.request.num_running:
            self.wait_causes.paused(victim.request)
        victim.status = Status.WAITING
        if not ends_turn:
            victim.request.num_preemptions += 1
            victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add_front(victim, self._num_kept_tokens(victim))

    def end(self, sequence: Sequence) -> None:
        """Ends a sequence in any state, and frees what it holds. Idempotent."""
        request = sequence.request
        if sequence.status is Status.ENDED:
            return
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
            sequence.drop_pending()
            self.waiting.stopped(sequence)
            self.throughput.stopped(sequence)
        elif sequence.status in (Status.FORKING, Status.FOLLOWING):
            del request.forking[sequence]
            self._take_reserved_row(sequence)
        elif request not in self.preparing:
            self.waiting.remove(sequence)
            self.swap.drop(sequence)
        sequence.status = Status.ENDED
        self.num_ended += 1
        if sequence.leads and request.forking:
            self._promote_sibling(request)
        request.num_live -= 1
        request.num_made += len(sequence.output)
        if not request.num_live:
            self.quarantine.ended(request, self.groups[request].is_finished)
            self.requests.remove(request)
            self.media.remove(request)
            self.timeouts.remove(request)
            self.preparing.discard(request)
            self.wait_causes.ended(request)
            request.sequences.clear()  # a reference cycle: without this only the garbage collector frees them
            self.groups.pop(request).clear()
        if self.on_request_end is not None and not request.num_live:
            self.on_request_end(request)

    def take_outputs(self) -> Outputs:
        """Returns what to send to frontends since the last call."""
        outputs, self.outputs = self.outputs, Outputs()
        outputs.pauses = self.wait_causes.take_pauses()
        return outputs

    def num_tokens_lost(self, sequence: Sequence) -> int:
        """Tokens that must be computed again if a running sequence is preempted."""
        return self.groups[sequence.request].num_tokens_lost(sequence, self.tables)

    def victims_first(self, running: list[Sequence]) -> list[Sequence]:
        """Returns running sequences, given in order of admission, in order of preemption:

        1. lowest priority class (largest number)
        2. least recompute cost: tokens that would have to be computed again
        3. most recently admitted

        Where the pool runs short, blocks are allocated in the opposite order, so that no victim has received
        any in the same plan. The sequence with the highest recompute cost in the best class always gets what
        it needs, so there is always progress.
        """
        order = [
            (-sequence.request.priority, self.num_tokens_lost(sequence), -position)
            for position, sequence in enumerate(running)
        ]
        return [running[-position] for _, _, position in sorted(order)]

    def drop_stopped(self) -> None:
        """Removes sequences that have stopped from `running`, all in one pass."""
        if self._has_stopped:
            self._has_stopped = False
            self.running = [sequence for sequence in self.running if sequence.status is Status.RUNNING]

    def _part_with(self, request: Request, num_siblings: int) -> None:
        """Lets all siblings but the first few wait for rows of their own. They will find the prompt."""
        size = self.tables.block_size
        for sibling in list(request.forking)[num_siblings:]:
            del request.forking[sibling]
            sibling.status = Status.WAITING
            self.waiting.add(sibling, (sibling.num_tokens - 1) // size * size)

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
            self.wait_causes.resumed(sequence.request)

    def _stop(self, sequence: Sequence) -> None:
        """Frees row and blocks of a running sequence, and the rows reserved for its siblings."""
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

    def _promote_sibling(self, request: Request) -> None:
        """Makes the first sibling the leader, after the leader has ended before its siblings could fork.

        The sibling computes the prompt from the start (the row at the worker was the leader's), but goes to
        the head of the queue, since it is the turn of its request.
        """
        sibling = next(iter(request.forking))
        del request.forking[sibling]
        sibling.leads = True
        sibling.status = Status.WAITING
        if request not in self.preparing:
            self.waiting.add_front(sibling, self._num_kept_tokens(sibling))

    def _num_kept_tokens(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that are cached or in the swap space now."""
        cached = len(self.prefix_cache.find(sequence)) * self.tables.block_size
        return max(cached, self.swap.num_tokens(sequence))
