"""Answers utility calls: at once where that is O(1), and piece by piece where it is not.

A step waits for what is answered between two steps, so what looks at many requests or blocks is a generator
that yields after each small piece of work and says what it cost. Every step goes on with the oldest of them,
up to a bound. What such an answer says of different requests may be some steps apart.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Generator
from heapq import nlargest, nsmallest
from typing import NamedTuple

from engine_core.adapters.names import AdapterNames
from engine_core.admin.frontend_directory import FrontendDirectory
from engine_core.admin.requests import explain, list_requests
from engine_core.context import CoreContext
from engine_core.intake.intake import RecentAborts
from engine_core.intake.validation import is_too_long
from engine_core.ownership import DetachedRequests
from engine_core.queue.fair import FairQueue
from engine_core.request import FinishReason, Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import AbortByIds, AdapterResult, EngineMessage, Utility, UtilityResult
from pagewire.v1 import inspection_pb2 as pb

log = logging.getLogger(__name__)

WORK_PER_STEP = 1000
"""Work on answers that a step waits for, in units of about a microsecond."""
MAX_PENDING = 64
"""Answers that are being put together. A call that comes on top is answered without a result."""

Work = Generator[int, None, None]
"""Fills a result; yields what it has done since the last time, in units of about a microsecond."""

MAX_CELLS = 16_384
_BLOCKS_PER_UNIT = 16
"""Blocks that are counted in a microsecond."""
_ENTRIES_PER_UNIT = 8
"""Entries of block tables that are counted in a microsecond."""
_PIECE = 4096
"""Cells and blocks between two yields."""
MAX_TENANTS = 1002  # a page, the last tenant of the page before, and whether there is another one
_TENANT_COST = 20
"""Microseconds to describe a tenant."""


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
        adapters: AdapterNames,
    ) -> None:
        self._context = context
        self._scheduler = context.scheduler
        self._recent_aborts = recent_aborts
        self._detached = detached
        self._directory = directory
        self._adapters = adapters
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
        elif call == "list_adapters":
            result.adapters.CopyFrom(self._adapters.table(with_use=True))
        elif call in ("load_adapter", "unload_adapter"):
            self._change_adapters(frontend, utility)
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

    def _change_adapters(self, frontend: bytes, utility: Utility) -> None:
        def answer(outcome: AdapterResult) -> None:
            result = UtilityResult(call_id=utility.call_id, adapter=outcome)
            self._context.send(frontend, EngineMessage(utility_result=result))

        if utility.HasField("load_adapter"):
            self._adapters.load(utility.load_adapter, answer)
        else:
            self._adapters.unload(utility.unload_adapter.name, answer)

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


def draw_pool(
    scheduler: Scheduler, call: pb.GetKvPoolRequest, result: pb.KvPool
) -> Generator[int, None, None]:
    """Draws which blocks of the KV pool are held, shared and cached, in a bounded number of cells; yields
    work done, in microseconds. The totals are of one moment, the picture is put together over some steps."""
    pool, swap = scheduler.pool, scheduler.swap
    max_cells = min(max(call.max_cells, 1), MAX_CELLS)
    per_cell = max(-(-pool.num_blocks // max_cells), 1)
    result.block_size, result.num_blocks = scheduler.tables.block_size, pool.num_blocks
    result.blocks_per_cell = per_cell
    result.held_blocks = pool.num_blocks - pool.num_free
    result.cached_blocks, result.free_cached_blocks = pool.num_cached, pool.num_free_cached
    result.num_host_blocks, result.used_host_blocks = swap.num_blocks, swap.num_blocks - swap.num_free
    piece = max(_PIECE // per_cell, 1) * per_cell
    for start in range(0, pool.num_blocks, piece):
        end = min(start + piece, pool.num_blocks)
        for first in range(start, end, per_cell):
            held, shared, free_cached = pool.count(first, min(first + per_cell, end))
            result.cell_held.append(held)
            result.cell_shared.append(shared)
            result.cell_free_cached.append(free_cached)
            result.shared_blocks += shared
        yield 1 + (end - start) // _BLOCKS_PER_UNIT + len(range(start, end, per_cell))
    yield from _put_holders(scheduler, per_cell, result)


def _put_holders(scheduler: Scheduler, per_cell: int, result: pb.KvPool) -> Generator[int, None, None]:
    numbers: dict[Request, int] = {}
    cells: list[dict[int, int]] = [{} for _ in result.cell_held]  # of each: number of a holder -> its blocks
    for sequence in list(scheduler.states.holders()):
        if not sequence.blocks:
            continue  # it has ended since the first step
        number = numbers.setdefault(sequence.request, len(numbers) + 1)
        if number > len(result.holders):
            request = sequence.request
            result.holders.add(request_id=request.request_id, tenant=request.tenant)
        result.holders[number - 1].blocks += len(sequence.blocks)
        for cell, count in Counter(block // per_cell for block in sequence.blocks).items():
            cells[cell][number] = cells[cell].get(number, 0) + count
        yield 2 + len(sequence.blocks) // _ENTRIES_PER_UNIT
    for start in range(0, len(cells), _PIECE):
        piece = cells[start : start + _PIECE]
        result.cell_holder.extend(max(held, key=held.__getitem__) if held else 0 for held in piece)
        yield len(piece) // 4


def list_tenants(
    scheduler: Scheduler, call: pb.ListTenantsRequest, result: pb.ListTenantsResponse
) -> Generator[int, None, None]:
    """Fills the result with the tenants that have most requests, or with those from a name on; yields work
    done, in microseconds."""
    result.SetInParent()
    requests, queue = scheduler.requests, scheduler.waiting
    names = requests.tenants()
    result.total = len(names)
    if call.HasField("limit"):
        names = nlargest(min(call.limit, MAX_TENANTS), names, key=requests.num_of_tenant)
    else:
        page_size = min(call.page_size, MAX_TENANTS)
        names = nsmallest(page_size, (name for name in names if name >= call.page_token))
    yield result.total
    for name in names:
        share = queue.share(name)
        info = result.tenants.add(
            tenant=name,
            requests=requests.num_of_tenant(name),
            sequences=requests.num_sequences_of_tenant(name),
            waiting_sequences=share.sequences,
            waiting_tokens=share.tokens,
            share=share.part,
        )
        tenant = queue.tenants.get(name) if isinstance(queue, FairQueue) else None
        if isinstance(queue, FairQueue) and tenant is not None:
            info.running_sequences, info.weight = tenant.num_running, tenant.weight
            info.served = queue.tenants.counter(tenant)
        yield _TENANT_COST
