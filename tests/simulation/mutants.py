"""Bugs, made on purpose: what would the simulation say if the code were wrong?

Each entry changes one thing in the real code, in this process, as a developer might get it wrong, and is
found by the check that is there for it: python -m tests.simulation.mutants prints which seed finds which.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, count
from typing import Any
from unittest import mock

from engine_core import request
from engine_core.adapters.memory import AdapterMemory
from engine_core.beam_search import BeamSearch
from engine_core.core import EngineCore
from engine_core.frontend_messages import FrontendMessages
from engine_core.intake import validation
from engine_core.intake.intake import RecentAborts
from engine_core.io.worker_group import WorkerGroup
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.block_tables import BlockTables
from engine_core.kv_cache.cache_changes import ContentChanges
from engine_core.kv_cache.host_swap import SwapSpace
from engine_core.kv_cache.prefix_cache import PrefixCache
from engine_core.kv_cache.state_checkpoints import StateCheckpoints
from engine_core.media import encoder_cache
from engine_core.media.encoder_cache import EncoderCache
from engine_core.ownership import Handover
from engine_core.quarantine import blame as suspects
from engine_core.quarantine import crash_journal
from engine_core.quarantine.blame import Span, Suspect
from engine_core.quarantine.crash_journal import CrashJournal
from engine_core.quarantine.quarantine import Quarantine
from engine_core.request import FinishReason, Request, Status
from engine_core.request import Sequence as CoreSequence
from engine_core.scheduler.planning.admission import Admission
from engine_core.scheduler.scheduler import Scheduler
from engine_core.scheduler.states.request_index import Timeouts
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from frontend.engine import journal
from frontend.engine.connection import EngineConnection
from frontend.engine.dispatcher import Dispatcher
from frontend.streams import generator as generation
from frontend.streams import stream
from frontend.streams.stream import Stream
from pagewire.internal.v1 import engine_pb2
from pagewire.internal.v1.worker_pb2 import KeptCache
from pagewire_simulated.adapters import SimulatedAdapters
from pagewire_simulated.media import SimulatedMedia
from tests.simulation.world import Failed, simulate
from worker.cache_contents import CacheContents
from worker.cpu.rank_memory import Ranks
from worker.executor.executor import StepExecutor
from worker.grammar.matcher import RowMatcher

MAX_SEEDS = 160
"""Each of them is found by one of the first so many."""

Mutate = Callable[[Callable[[type | object, str, object], None]], None]
"""Takes patch(owner, name, replacement)."""


def _blocks_leak_on_abort(patch: Callable[..., None]) -> None:
    """A sequence that is aborted keeps its last block."""
    close = BlockTables.close

    def leaky(self: BlockTables, sequence: CoreSequence) -> None:
        if sequence.blocks and sequence.output and sequence.finish()[0] is FinishReason.NONE:
            sequence.blocks.pop()
        close(self, sequence)

    patch(BlockTables, "close", leaky)


def _blocks_are_freed_twice(patch: Callable[..., None]) -> None:
    """A block that others hold as well is free when the first of them drops it."""

    def free(self: BlockPool, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._references[block] = 0
            self._blank.append(block)

    patch(BlockPool, "free", free)


def _no_copy_on_write(patch: Callable[..., None]) -> None:
    """A fork writes into the blocks of its siblings."""
    patch(BlockPool, "is_shared", lambda self, block: False)


def _unfilled_blocks_become_known(patch: Callable[..., None]) -> None:
    """A block is committed one token before it is full."""
    commit = PrefixCache.commit

    def early(self: PrefixCache, sequence: CoreSequence) -> None:
        sequence.num_computed_tokens += 1
        try:
            commit(self, sequence)
        finally:
            sequence.num_computed_tokens -= 1

    patch(PrefixCache, "commit", early)


def _salt_is_ignored(patch: Callable[..., None]) -> None:
    """Requests share blocks across cache salts."""
    root = PrefixCache._root

    def unsalted(self: PrefixCache, request: Request) -> bytes:
        salt, request.cache_salt = request.cache_salt, ""
        try:
            return root(self, request)
        finally:
            request.cache_salt = salt

    patch(PrefixCache, "_root", unsalted)


def _swapped_blocks_come_back_elsewhere(patch: Callable[..., None]) -> None:
    """The first two blocks from the swap space change places."""
    swap_in = SwapSpace.swap_in

    def crossed(self: SwapSpace, sequence: CoreSequence, plan: Plan) -> None:
        before = len(plan.swap_in_blocks)
        swap_in(self, sequence, plan)
        plan.swap_in_blocks[before : before + 2] = plan.swap_in_blocks[before : before + 2][::-1]

    patch(SwapSpace, "swap_in", crossed)


def _pending_tokens_are_dropped(patch: Callable[..., None]) -> None:
    """A token that arrives for a sequence which was preempted meanwhile is passed over."""
    update = Scheduler.update

    def forgetful(self: Scheduler, result: Result) -> list[Request]:
        sampling = self.in_flight[0].sampling
        kept = [place for place, sequence in enumerate(sampling) if sequence.status is not Status.WAITING]
        if len(kept) < len(sampling):
            sampling[:] = [sampling[place] for place in kept]
            result = Result(result.step, [result.token_ids[place] for place in kept])
        return update(self, result)

    patch(Scheduler, "update", forgetful)


def _tokens_go_to_the_wrong_rows(patch: Callable[..., None]) -> None:
    """A step's first two tokens change places."""
    update = Scheduler.update

    def crossed(self: Scheduler, result: Result) -> list[Request]:
        result.token_ids[:2] = result.token_ids[:2][::-1]
        return update(self, result)

    patch(Scheduler, "update", crossed)


def _no_prompt_is_admitted_alone(patch: Callable[..., None]) -> None:
    """A prompt that takes the whole pool waits for ever."""
    fits = Admission.fits

    def stricter(self: Admission, sequence: CoreSequence, cached: list[int]) -> bool:
        missing = self._tables.missing(sequence.num_tokens + 1, cached)
        return missing < self._tables.pool.num_free and fits(self, sequence, cached)

    patch(Admission, "fits", stricter)


def _plans_depend_on_what_is_not_recorded(patch: Callable[..., None]) -> None:
    """Now and then no request is admitted, for a reason that no event and no clock gives."""
    fits, calls = Admission.fits, count()

    def moody(self: Admission, sequence: CoreSequence, cached: list[int]) -> bool:
        return fits(self, sequence, cached) and (not self._states.running or next(calls) % 5 > 0)

    patch(Admission, "fits", moody)


def _ended_sequences_run_again(patch: Callable[..., None]) -> None:
    """A core that takes over a request does not look at ended_indexes."""
    add = FrontendMessages._add_request

    def careless(
        self: FrontendMessages, frontend: bytes, message: engine_pb2.AddRequest, arrival: float
    ) -> None:
        del message.ended_indexes[:]
        add(self, frontend, message, arrival)

    patch(FrontendMessages, "_add_request", careless)


def _aborts_of_waiting_requests_are_lost(patch: Callable[..., None]) -> None:
    """An Abort finds only what runs."""
    abort = FrontendMessages._abort

    def partial(self: FrontendMessages, frontend: bytes, message: engine_pb2.Abort) -> None:
        request = self._scheduler.requests.by_handle(frontend, message.handle)
        if request is not None and request.num_running:
            abort(self, frontend, message)

    patch(FrontendMessages, "_abort", partial)


def _lost_frontends_keep_their_requests(patch: Callable[..., None]) -> None:
    """The core goes on for a frontend that is gone."""
    patch(FrontendMessages, "lose", lambda self, frontend: None)


def _time_limits_end_nothing(patch: Callable[..., None]) -> None:
    """The clock ends only what has a deadline."""
    due = Timeouts.due
    patch(Timeouts, "due", lambda self, now: [pair for pair in due(self, now) if not pair[1]])


def _a_position_is_repeated_after_a_resume(patch: Callable[..., None]) -> None:
    """The journal sends all delivered tokens again but the last one."""
    put = journal.put_delivered

    def short(request: engine_pb2.AddRequest, delivered: object) -> None:
        put(request, ((index, tokens[:-1], ended) for index, tokens, ended in delivered))  # type: ignore[attr-defined]

    patch(journal, "put_delivered", short)


def _a_continuation_forgets_a_token(patch: Callable[..., None]) -> None:
    """The frontend that goes on with a stream tells the core one token less than the client has."""
    put = generation.put_delivered

    def short(request: engine_pb2.AddRequest, delivered: object) -> None:
        put(request, ((index, tokens[:-1], ended) for index, tokens, ended in delivered))  # type: ignore[attr-defined]

    patch(generation, "put_delivered", short)


def _lost_requests_are_not_sent_again(patch: Callable[..., None]) -> None:
    """The journal of a frontend is never read."""
    patch(Dispatcher, "resume", lambda self: None)


def _requests_of_a_dead_core_wait_for_it(patch: Callable[..., None]) -> None:
    """... until another message arrives, though other cores serve."""
    resume = Dispatcher.resume

    def later(self: Dispatcher) -> None:
        asyncio.get_running_loop().call_later(0.01, resume, self)

    patch(Dispatcher, "resume", later)


def _aborts_are_forgotten(patch: Callable[..., None]) -> None:
    """An Abort finds only what is there, and not what is on its way."""
    patch(RecentAborts, "includes", lambda self, request_id, since: False)


def _a_stop_string_ends_all_siblings(patch: Callable[..., None]) -> None:
    """The Abort of one sequence does not say which."""
    abort = EngineConnection.abort
    patch(
        EngineConnection,
        "abort",
        lambda self, handle, *indexes, detach=False: abort(self, handle, detach=detach),
    )


def _a_request_that_is_taken_over_begins_where_it_is(patch: Callable[..., None]) -> None:
    """The last call is not sent what was computed before it came."""
    patch(Handover, "_send_so_far", lambda self, request, message, delivered: None)


def _a_slow_reader_loses_messages(patch: Callable[..., None]) -> None:
    """What comes while a client reads replaces what came before."""
    push = Stream.push

    def overwrite(self: Stream, index: int, *rest: object) -> bool:
        sequence = self._sequences[index]
        if sequence.dirty and sequence._num_sent:
            sequence._num_sent = len(sequence.tokens)
        return push(self, index, *rest)  # type: ignore[arg-type]

    patch(Stream, "push", overwrite)


def _beams_fork_from_the_wrong_parent(patch: Callable[..., None]) -> None:
    """The rows of a search are filled in the order of the old beams, not in that of the new ones."""
    advance = BeamSearch.advance
    patch(BeamSearch, "advance", lambda self, offers: sorted(advance(self, offers)))


def _best_of_returns_the_first(patch: Callable[..., None]) -> None:
    """... and not the most probable."""
    patch(stream, "most_probable", lambda sequences, count: list(sequences[:count]))


def _later_requests_are_not_journaled(patch: Callable[..., None]) -> None:
    """The journal of an engine that dies has only the requests of its first step."""
    record = Quarantine.record

    def lazy(self: Quarantine, plan: Plan, oldest: int) -> None:
        if plan.step == 1:
            record(self, plan, oldest)

    patch(Quarantine, "record", lazy)


def _all_in_the_fatal_step_get_a_strike(patch: Callable[..., None]) -> None:
    """Isolated or not."""

    def crude(present: dict[int, Span], suspects: dict[int, Suspect], death: int) -> dict[int, Suspect]:
        strikes = {key: suspects[key].strikes + 1 if key in suspects else 1 for key in present}
        return suspects | {key: Suspect(present[key], 1, death, strikes[key]) for key in present}

    patch(crash_journal, "judge", crude)


def _progress_is_no_alibi(patch: Callable[..., None]) -> None:
    """A suspect stays one, however far it gets."""
    patch(CrashJournal, "clear_suspect", lambda self, key: None)
    patch(suspects, "_strike", lambda suspect, span, death, alone: _struck(suspect, span, death))


def _struck(suspect: Suspect, span: Span, death: int) -> Suspect:
    return Suspect(span, 1, death, suspect.strikes + 1)


_struck.__module__ = ""  # no mutant


def _grammars_forget_what_was_delivered(patch: Callable[..., None]) -> None:
    """The matcher of a row that is resumed begins anew."""
    begin = RowMatcher.begin
    patch(RowMatcher, "begin", lambda self, output_ids: begin(self, []))


def _a_worker_is_not_told_that_a_block_is_written_to_again(patch: Callable[..., None]) -> None:
    """So the next core finds it under what it held before."""
    patch(ContentChanges, "forgotten", lambda self, block: self._kept.pop(block, None))


def _a_worker_is_told_of_blocks_before_their_plan(patch: Callable[..., None]) -> None:
    """A core that dies before it sends the plan leaves blocks that were never computed."""
    commit, tell = PrefixCache.commit, WorkerGroup._send_cache_changes

    def hasty(self: PrefixCache, sequence: CoreSequence) -> None:
        commit(self, sequence)
        if self._pool.changes is not None:
            self._pool.changes.on_loss()

    patch(PrefixCache, "commit", hasty)
    patch(WorkerGroup, "_send_cache_changes", lambda self, losses_alone: tell(self, losses_alone=False))


def _a_worker_keeps_its_list_when_it_is_handed_over(patch: Callable[..., None]) -> None:
    """What the next core writes to before its first plan is still in it."""
    hand_over = CacheContents.hand_over

    def keeping(self: CacheContents) -> KeptCache:
        contents = self._contents.copy()
        kept = hand_over(self)
        self._contents = contents
        return kept

    patch(CacheContents, "hand_over", keeping)


def _adopted_blocks_are_free_twice(patch: Callable[..., None]) -> None:
    """A block that is found again is also one without content."""
    restore = BlockPool.restore

    def careless(self: BlockPool, contents: Mapping[int, bytes]) -> None:
        blank = self._blank.copy()
        restore(self, contents)
        self._blank = blank

    patch(BlockPool, "restore", careless)


def _rows_outlive_their_core(patch: Callable[..., None]) -> None:
    """An adopted worker still has the rows of the core before."""
    patch(StepExecutor, "abandon", lambda self: [self.finish() for _ in tuple(self._pending)])


def _a_checkpoint_is_read_by_the_plan_that_saves_it(patch: Callable[..., None]) -> None:
    """Its state is not there yet."""
    save = StateCheckpoints._save

    def early(self: StateCheckpoints, *arguments: Any) -> None:
        save(self, *arguments)
        self.begin_plan()

    patch(StateCheckpoints, "_save", early)


def _a_worker_is_told_of_states_before_their_plan(patch: Callable[..., None]) -> None:
    """A core that dies before it sends the plan leaves a slot that holds another state, or none."""
    save, tell = StateCheckpoints._save, WorkerGroup._send_cache_changes

    def hasty(self: StateCheckpoints, *arguments: Any) -> None:
        save(self, *arguments)
        if self.changes is not None:
            self.changes.on_loss()

    patch(StateCheckpoints, "_save", hasty)
    patch(WorkerGroup, "_send_cache_changes", lambda self, losses_alone: tell(self, losses_alone=False))


def _adopted_states_change_places(patch: Callable[..., None]) -> None:
    """Each is taken for that of another prefix."""
    adopt = StateCheckpoints.adopt

    def mixing(self: StateCheckpoints, contents: Mapping[int, bytes]) -> None:
        adopt(self, dict(zip(contents, reversed(contents.values()), strict=True)))

    patch(StateCheckpoints, "adopt", mixing)


def _a_block_does_not_know_its_adapter(patch: Callable[..., None]) -> None:
    """Requests with different adapters share blocks."""
    patch(request, "block_content", lambda tokens, *_: tokens)


def _adapters_are_dropped_under_their_requests(patch: Callable[..., None]) -> None:
    """Whatever was not used lately makes room."""
    patch(AdapterMemory, "_used", lambda self: set())


def _loaded_adapters_are_not_counted(patch: Callable[..., None]) -> None:
    """There is always room for one more."""
    patch(AdapterMemory, "num_bytes", property(lambda self: 0))


def _a_stream_goes_on_with_what_its_name_stands_for(patch: Callable[..., None]) -> None:
    """The digest that a client sends is not looked at."""
    named_by = generation.named_by
    patch(generation, "named_by", lambda *arguments: named_by(*arguments)._replace(digest=b""))


def _an_adopted_worker_forgets_what_it_has_loaded(patch: Callable[..., None]) -> None:
    """The next core loads everything once more, and drops none of it."""
    patch(SimulatedAdapters, "loaded", [])


def _names_are_told_to_new_frontends_alone(patch: Callable[..., None]) -> None:
    """A frontend does not hear what changes while it is connected."""
    patch(EngineCore, "_announce_adapters", lambda self, table: None)


def _a_rank_begins_a_step_that_others_do_not_have(patch: Callable[..., None]) -> None:
    """Whatever its core has sent before it was killed."""
    patch(Ranks, "begin_step", lambda self, micro_batch: None)


def _ranks_do_not_leave_their_core_together(patch: Callable[..., None]) -> None:
    """What one has waited for in vain is counted on."""
    patch(Ranks, "leave_core", lambda self: None)


def _a_victim_begins_before_its_token_is_known(patch: Callable[..., None]) -> None:
    """Several plans may be in flight, the oldest of which samples it."""

    def look(self: Admission, sequence: CoreSequence) -> list[int] | None:
        cached = self._prefix_cache.find(sequence)
        return cached if self.fits(sequence, cached) else None

    patch(Admission, "look", look)


def _images_do_not_name_blocks(patch: Callable[..., None]) -> None:
    """Requests with other images share blocks."""
    patch(validation, "media_contents", lambda items: {})


def _a_chunk_goes_on_behind_an_image_without_room(patch: Callable[..., None]) -> None:
    """Its positions are computed without vectors."""
    extend = EncoderCache.extend

    def far(self: EncoderCache, sequence: CoreSequence, start: int, end: int, plan: Plan) -> int:
        extend(self, sequence, start, end, plan)
        return end

    patch(EncoderCache, "extend", far)


def _a_chunk_cuts_an_image_that_is_seen_whole(patch: Callable[..., None]) -> None:
    """Its first tokens do not see what follows."""
    patch(encoder_cache, "_across", lambda sequence, end: None)


def _vectors_that_a_step_needs_are_forgotten(patch: Callable[..., None]) -> None:
    """What was used last makes room. What was used least recently never is: plans move what they need behind
    it."""

    def make_room(self: EncoderCache, size: int, plan: Plan) -> None:
        while self.num_vectors + size > self.capacity:
            self._forget(next(reversed(self._kept)), plan)

    patch(EncoderCache, "_make_room", make_room)


def _vectors_outlive_their_core(patch: Callable[..., None]) -> None:
    """An adopted worker has vectors that the next core does not know of."""
    patch(SimulatedMedia, "forget_media", lambda self: None)


MUTANTS: dict[str, Callable[[Callable[..., None]], None]] = {
    name.removeprefix("_").replace("_", " "): value
    for name, value in list(globals().items())
    if name.startswith("_") and getattr(value, "__module__", "") == __name__
}


_KINDS = {
    "later requests are not journaled": "poison",
    "all in the fatal step get a strike": "storm",
    "progress is no alibi": "storm",
    "a worker is not told that a block is written to again": "succession",
    "a worker is told of blocks before their plan": "succession",
    "a worker keeps its list when it is handed over": "succession",
    "adopted blocks are free twice": "succession",
    "rows outlive their core": "succession",
    "a worker is told of states before their plan": "states",
    "adopted states change places": "states",
    "a block does not know its adapter": "adapters",
    "adapters are dropped under their requests": "adapters",
    "loaded adapters are not counted": "adapters",
    "a stream goes on with what its name stands for": "adapters",
    "an adopted worker forgets what it has loaded": "adapters",
    "names are told to new frontends alone": "adapters",
    "images do not name blocks": "images",
    "a chunk goes on behind an image without room": "images",
    "a chunk cuts an image that is seen whole": "images",
    "vectors that a step needs are forgotten": "images",
    "vectors outlive their core": "images",
    "a rank begins a step that others do not have": "groups",
    "ranks do not leave their core together": "groups",
    "a victim begins before its token is known": "groups",
}
"""Where it takes another kind of seeds."""
_FIRST = {
    "salt is ignored": 14,
    "no prompt is admitted alone": 14,
    "plans depend on what is not recorded": 14,
    "ended sequences run again": 32,
    "a position is repeated after a resume": 22,
    "requests of a dead core wait for it": 13,
    "aborts are forgotten": 26,
    "a stop string ends all siblings": 18,
    "best of returns the first": 7,
    "later requests are not journaled": 8,
    "all in the fatal step get a strike": 7,
    "progress is no alibi": 139,
    "grammars forget what was delivered": 7,
    "a worker is told of blocks before their plan": 14,
    "a worker keeps its list when it is handed over": 11,
    "a checkpoint is read by the plan that saves it": 61,
    "a worker is told of states before their plan": 7,
    "a block does not know its adapter": 4,
    "adapters are dropped under their requests": 4,
    "loaded adapters are not counted": 4,
    "a stream goes on with what its name stands for": 31,
    "a rank begins a step that others do not have": 7,
    "ranks do not leave their core together": 7,
    "a victim begins before its token is known": 82,
    "vectors that a step needs are forgotten": 59,
}
"""Seeds that have found them, which are tried first: those before them found nothing."""


def find(mutant: str) -> Failed | None:
    """The first failure; None: the bug was not found."""
    kind, first = _KINDS.get(mutant, "plain"), _FIRST.get(mutant, 0)
    with ExitStack() as stack:
        MUTANTS[mutant](lambda *change: stack.enter_context(mock.patch.object(*change)))
        for seed in chain(range(first, MAX_SEEDS), range(first)):
            try:
                simulate(seed, kind)
            except Failed as failure:
                return failure
    return None


def main() -> int:
    """Prints what each bug is found by; 1 when one is not."""
    unfound = 0
    for mutant in MUTANTS:
        failure = find(mutant)
        unfound += failure is None
        said = "NOT FOUND" if failure is None else f"seed {failure.seed}: {failure.__cause__}"
        print(f"{mutant:45} {said}", flush=True)
    return int(unfound > 0)


if __name__ == "__main__":
    sys.exit(main())
