"""Handles the messages of frontends (requests, aborts, heartbeats, questions, watches of the prefix cache),
and of other engine cores, which read blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from engine_core.adapters.names import AdapterNames
from engine_core.admin.answers import UtilityAnswers
from engine_core.admin.frontend_directory import FrontendDirectory
from engine_core.context import BUG, CoreContext
from engine_core.errors import Code, Refused
from engine_core.intake.intake import Intake
from engine_core.intake.preparation import Preparation
from engine_core.io.inbox import Received
from engine_core.kv_cache.cache_changes import encode
from engine_core.kv_cache.prefix_cache import PrefixCache
from engine_core.kv_transfer.leases import Leases
from engine_core.ownership import DetachedRequests, Handover
from engine_core.request import Request
from pagewire.internal.v1.engine_pb2 import Abort, AddRequest, CacheChanges, EngineMessage, Hello, WatchCache
from pagewire.logs import about

log = logging.getLogger(__name__)

PART_BLOCKS = 1024
"""Blocks in a part of a snapshot, about 90 KB with 16 tokens each: parts of a million blocks stay below the
number of messages that a connection holds."""


class CacheWatches:
    """Tells frontends that watch it what the prefix cache holds, and how it changes from step to step.
    Without a watch, no step does anything for it."""

    def __init__(self, cache: PrefixCache, send: Callable[[bytes, EngineMessage], None]) -> None:
        """send: takes (frontend, message)."""
        self._cache = cache
        self._send = send
        self._watches: dict[tuple[bytes, int], None] = {}

    def take(self, frontend: bytes, message: WatchCache) -> None:
        """Begins a watch, with a snapshot, or ends it."""
        if message.ends:
            self._watches.pop((frontend, message.watch), None)
            return
        self.publish()  # what has changed so far is for the other watches: the snapshot has it
        log = self._cache.logged()
        blocks = log.snapshot()
        num_parts = max(-(-len(log) // PART_BLOCKS), 1)
        for part in range(num_parts):
            changes = CacheChanges(
                watch=message.watch,
                num_parts=num_parts,
                changes=encode(islice(blocks, PART_BLOCKS)),
                num_unknown_blocks=self._cache.num_blocks - len(log) if part == 0 else 0,
            )
            self._send(frontend, EngineMessage(cache_changes=changes))
        self._watches[frontend, message.watch] = None

    def drop(self, frontend: bytes) -> None:
        """Ends the watches of a frontend that is gone, or has forgotten them."""
        for key in [key for key in self._watches if key[0] == frontend]:
            del self._watches[key]

    def publish(self) -> None:
        """Sends what has changed since the last call."""
        if self._cache.log is None:
            return
        changes = self._cache.log.take()
        if not changes or not self._watches:
            return
        encoded = encode(changes)
        for frontend, watch in self._watches:
            message = CacheChanges(watch=watch, changes=encoded)
            self._send(frontend, EngineMessage(cache_changes=message))


class FrontendMessages:
    """What frontends send, message by message. All methods run in the step loop's thread."""

    def __init__(
        self,
        context: CoreContext,
        intake: Intake,
        preparation: Preparation,
        adapters: AdapterNames,
        leases: Leases,
    ) -> None:
        self.detached = DetachedRequests(context, intake.lost)
        self.cache_watches = CacheWatches(context.scheduler.prefix_cache, context.send)
        self.directory = FrontendDirectory(context)
        self.utilities = UtilityAnswers(
            context, intake.recent_aborts, self.detached, self.directory, adapters
        )
        self._adapters, self._leases = adapters, leases
        self._context = context
        self._scheduler = context.scheduler
        self._counters = context.counters
        self._handover = Handover(context, self.detached)
        self._intake = intake
        self._preparation = preparation

    def handle(self, event: Received) -> None:
        """Handles one message. An exception fails that message alone."""
        kind = event.message.WhichOneof("message")
        frontend = event.frontend
        try:
            if kind == "add_request":
                self._add_request(frontend, event.message.add_request, event.at)
            elif kind == "abort":
                self._abort(frontend, event.message.abort)
            elif kind == "hello":
                self._answer_hello(frontend, event.message.hello)
            elif kind == "utility":
                known = self.utilities.ask(frontend, event.message.utility, event.at)
                self._counters.bad_messages += not known
            elif kind == "watch_cache":
                self.cache_watches.take(frontend, event.message.watch_cache)
            elif kind == "frontend_reply":
                self.directory.reply(frontend, event.message.frontend_reply)
            elif kind == "known_adapters":
                self._adapters.take_over(event.message.known_adapters)
            elif kind in ("lease_blocks", "renew_lease", "end_lease"):
                self._leases.handle(frontend, getattr(event.message, kind))
        except Exception:
            self._counters.internal_errors += 1
            if self._counters.internal_errors.bit_count() == 1:
                name = event.message.add_request  # empty for other kinds
                with about(request_id=name.request_id, tenant=name.tenant):
                    log.exception("cannot handle a message of kind %s", kind)
            if kind == "add_request":
                self._give_up(frontend, event.message.add_request.handle)

    def lose(self, frontend: bytes) -> None:
        """Fails the requests of a frontend, which may be alive and only have been too slow."""
        self.cache_watches.drop(frontend)
        self._leases.drop(frontend)
        self.directory.gone(frontend)
        requests = self._scheduler.requests.of_frontend(frontend)
        self._counters.frontends_lost += bool(requests)
        for request in requests:
            text = "the engine could not reach the frontend"
            self._context.fail(frontend, request.handle, Code.UNAVAILABLE, "FRONTEND_LOST", text)
            self.detached.detach(request, is_refunded=True)
        if requests:
            num_kept = sum(request.num_live > 0 for request in requests)
            log.warning(
                "a frontend is gone: %d requests go on without it, %d are aborted",
                num_kept,
                len(requests) - num_kept,
            )

    def fail(self, request: Request, code: Code, reason: str, message: str) -> None:
        """Ends a request, and tells its frontend why."""
        self._scheduler.abort(request)
        self._context.fail(request.frontend, request.handle, code, reason, message)

    def _add_request(self, frontend: bytes, message: AddRequest, arrival: float) -> None:
        requests = self._scheduler.requests
        if requests.by_handle(frontend, message.handle):
            self._counters.bad_messages += 1
            if self._counters.bad_messages.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
                log.warning("handles that a frontend uses twice, dropped: %d", self._counters.bad_messages)
            return  # a failure would end the request that has the handle
        try:
            self._intake.check_aborts(message, arrival)  # a later call may have what an earlier one may not
            if self._handover.take(message, frontend, arrival):
                return
            request = self._intake.admit(message, frontend, arrival)
        except Refused as refusal:
            self._context.refuse(frontend, message.handle, refusal)
        else:
            self._counters.requests += 1
            self._preparation.add(request)
            self._handover.end_delivered(request, message)

    def _abort(self, frontend: bytes, message: Abort) -> None:
        request = self._scheduler.requests.by_handle(frontend, message.handle)
        if request and message.detach:
            self.detached.detach(request)
        elif request:
            self._scheduler.abort(request, frozenset(message.indexes))

    def _answer_hello(self, frontend: bytes, hello: Hello) -> None:
        is_listed = self.directory.present(frontend, hello)
        welcome = self._context.identity.welcome
        if hello.known_epoch == welcome.epoch:
            if not is_listed:  # it was taken for lost, and has not heard of changes since
                self._context.send(frontend, EngineMessage(adapters=self._adapters.table()))
            self._context.send(frontend, EngineMessage(load=self._context.describe_load()))
            return
        # A frontend that does not know this epoch has forgotten the requests that it sent under it.
        for request in self._scheduler.requests.of_frontend(frontend):
            self.detached.detach(request)
        self.cache_watches.drop(frontend)
        answer = EngineMessage(welcome=welcome)
        answer.welcome.adapters.CopyFrom(self._adapters.table())
        self._context.send(frontend, answer)

    def _give_up(self, frontend: bytes, handle: int) -> None:
        """Ends a request whose arrival raised, if it was added."""
        request = self._scheduler.requests.by_handle(frontend, handle)
        if request:
            self._scheduler.abort(request)
        self._context.fail(frontend, handle, *BUG)
