"""Answers utility calls: at once where that is O(1), and piece by piece where it is not.

A step waits for what is answered between two steps, so what looks at many requests or blocks is a generator
that yields after each small piece of work and says what it cost. Every step goes on with the oldest of them,
up to a bound. What such an answer says of different requests may be some steps apart.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator
from typing import NamedTuple

from engine_core.admin.explanation import explain
from engine_core.admin.frontend_directory import FrontendDirectory
from engine_core.admin.kv_pool import draw_pool
from engine_core.admin.requests import list_requests
from engine_core.admin.tenants import list_tenants
from engine_core.context import CoreContext
from engine_core.intake.recent_aborts import RecentAborts
from engine_core.intake.validation import is_too_long
from engine_core.ownership.detached import DetachedRequests
from engine_core.request import FinishReason
from pagewire.internal.v1.engine_pb2 import AbortByIds, EngineMessage, Utility, UtilityResult

log = logging.getLogger(__name__)

WORK_PER_STEP = 1000
"""Work on answers that a step waits for, in units of about a microsecond."""
MAX_PENDING = 64
"""Answers that are being put together. A call that comes on top is answered without a result."""

Work = Generator[int, None, None]
"""Fills a result; yields what it has done since the last time, in units of about a microsecond."""


class _Pending(NamedTuple):
    frontend: bytes
    result: UtilityResult
    work: Work


class UtilityAnswers:
    """The utility calls of all frontends."""

    def __init__(
        self,
        context: CoreContext,
        recent_aborts: RecentAborts,
        detached: DetachedRequests,
        directory: FrontendDirectory,
    ) -> None:
        self._context = context
        self._scheduler = context.scheduler
        self._recent_aborts = recent_aborts
        self._detached = detached
        self._directory = directory
        self._pending: deque[_Pending] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def ask(self, frontend: bytes, utility: Utility, arrival: float) -> bool:
        """Takes a call, and answers it now or in the next steps. Returns False for an unknown kind, which is
        answered without a result."""
        result, call = UtilityResult(call_id=utility.call_id), utility.WhichOneof("call")
        if call == "abort_by_ids":
            result.aborted.CopyFrom(AbortByIds(request_ids=self._abort(utility.abort_by_ids, arrival)))
        elif call == "get_load":
            result.load.CopyFrom(self._context.describe_load())
        elif call == "reset_cache":
            self._scheduler.reset_cache()
            result.cache_reset.SetInParent()
        elif call == "find_request":
            name = utility.find_request.request_id
            request = self._scheduler.requests.by_id(name) or self._detached.find(name)
            result.found.in_flight = request is not None
        elif call == "list_frontends":
            result.frontends.SetInParent()
            self._directory.put_list(result.frontends)
        elif call == "command_frontend":
            if self._directory.command(frontend, utility.call_id, utility.command_frontend):
                return True
        elif call is not None and len(self._pending) < MAX_PENDING:
            self._pending.append(_Pending(frontend, result, self._begin(call, utility, result)))
            return True
        self._context.send(frontend, EngineMessage(utility_result=result))
        return call is not None

    def advance(self) -> None:
        """Goes on with the oldest answer, and sends it when it is complete. To be called in every step."""
        if not self._pending:
            return
        frontend, result, work = self._pending[0]
        done = 0
        try:
            for cost in work:
                done += cost
                if done >= WORK_PER_STEP:
                    return
        except Exception:  # a question must not end the core
            self._context.counters.internal_errors += 1
            log.exception("cannot answer a question of kind %s", result.WhichOneof("result"))
            result.ClearField(result.WhichOneof("result") or "load")
        self._pending.popleft()
        self._context.send(frontend, EngineMessage(utility_result=result))

    def _begin(self, call: str, utility: Utility, result: UtilityResult) -> Work:
        now = self._context.clock()
        if call == "list_requests":
            return list_requests(self._scheduler.states, utility.list_requests, result.requests, now)
        if call == "explain_request":
            name = utility.explain_request.request_id
            return explain(self._scheduler, name, result.explanation, now)
        if call == "get_kv_pool":
            return draw_pool(self._scheduler, utility.get_kv_pool, result.kv_pool)
        assert call == "list_tenants"
        return list_tenants(self._scheduler, utility.list_tenants, result.tenants)

    def _abort(self, message: AbortByIds, arrival: float) -> list[str]:
        """Ends requests by their public ids; returns those that were in flight."""
        aborted = []
        for name in message.request_ids:
            if is_too_long(name):
                continue  # no request has such a name, and aborted names are kept
            self._recent_aborts.add(name, arrival)  # the request may still arrive, or be resent
            found = self._scheduler.requests.named(name)
            for request in found:
                self._scheduler.finish(request, FinishReason.ABORTED)
            if found:
                aborted.append(name)
        return aborted
