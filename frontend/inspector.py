"""Says what the service is doing: asks the engine cores, and adds what only this frontend knows.

A core puts such answers together between its steps, so a tenant has one question at the cores at a time.
"""

import time
from collections.abc import Collection

from frontend.auth.caller import Caller, scope
from frontend.call.turns import TenantTurns
from frontend.engine.client import EngineClient
from frontend.engine.core import Core
from frontend.errors import EngineNotReady, InvalidRequest, RequestNotFound
from frontend.paging import read_page
from frontend.streams.request_registry import RegisteredRequest, RequestRegistry
from frontend.validation.rules import MAX_ID_BYTES
from pagewire.host.clock import MONOTONIC_ORIGIN_NS
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import inspection_pb2 as pb
from pagewire.v1.generation_pb2 import EffectiveParameters

DEFAULT_CELLS, MAX_CELLS = 1024, 16_384
"""Cells in the picture of a KV pool."""
_MEASURED_HERE = (pb.REQUEST_PHASE_PREFILL, pb.REQUEST_PHASE_DECODE, pb.REQUEST_PHASE_FINISHING)


class LocalRequests:
    """The requests of this frontend; their ids are the engine's."""

    def __init__(self, registry: RequestRegistry, engine: EngineClient) -> None:
        self._registry = registry
        self._engine = engine

    def refine(self, info: pb.RequestInfo) -> None:
        """Adds to what a core says of a request what only this frontend measures, if it is one of its own."""
        entry = self._registry.find(info.request_id)
        if entry is None or entry.timings is None or entry.stream is None:
            return
        if entry.stream.ended:
            info.phase = pb.REQUEST_PHASE_FINISHING
            info.waits_for = pb.WAIT_CAUSE_UNSPECIFIED
        if info.phase in _MEASURED_HERE:
            info.timings.CopyFrom(entry.timings.timings(time.monotonic_ns()))

    def without_core(self, tenant: str | None, known: Collection[str]) -> list[pb.RequestInfo]:
        """Returns the requests that no core has, in order of arrival: before, after and between cores.

        tenant: of this one; None: of all. known: ids that a core has named.
        """
        return [
            self._describe(name, entry, phase)
            for name, entry in self._registry.items()
            if name not in known
            and (tenant is None or entry.tenant == tenant)
            and (phase := self._phase(entry)) is not None
        ]

    def find(self, engine_id: str) -> pb.RequestInfo | None:
        """Returns a request that no core has."""
        entry = self._registry.find(engine_id)
        if entry is None or entry.members or (phase := self._phase(entry)) is None:
            return None
        return self._describe(engine_id, entry, phase)

    def parameters(self, engine_id: str) -> EffectiveParameters | None:
        """Returns what a request runs with; None: its call is not here, or has not been read."""
        entry = self._registry.find(engine_id)
        return entry.stream.parameters() if entry is not None and entry.stream is not None else None

    def _phase(self, entry: RegisteredRequest) -> pb.RequestPhase | None:
        """Returns where a request is; None: with a core."""
        if entry.stream is None or entry.ticket is None:
            return pb.REQUEST_PHASE_ARRIVING
        if entry.stream.ended:
            return pb.REQUEST_PHASE_FINISHING
        return pb.REQUEST_PHASE_WITHOUT_ENGINE if self._engine.waits(entry.ticket) else None

    def _describe(self, engine_id: str, entry: RegisteredRequest, phase: pb.RequestPhase) -> pb.RequestInfo:
        info = pb.RequestInfo(
            request_id=engine_id,
            tenant=entry.tenant,
            priority=entry.priority,
            phase=phase,
            frontend=self._engine.identity.hex(),
        )
        if phase == pb.REQUEST_PHASE_WITHOUT_ENGINE:
            info.waits_for = pb.WAIT_CAUSE_ENGINE
        if entry.timings is not None:
            info.timings.CopyFrom(entry.timings.timings(time.monotonic_ns()))
            info.age.CopyFrom(info.timings.total)
            info.arrival_time.FromNanoseconds(MONOTONIC_ORIGIN_NS + entry.timings.arrival)
        if entry.stream is not None:
            usage = entry.stream.usage()
            info.prompt_tokens, info.cached_prompt_tokens = usage.prompt_tokens, usage.cached_prompt_tokens
            info.output_tokens = usage.completion_tokens
            info.sequences = entry.stream.num_open
        return info


class Inspector:
    """Answers questions about requests, blocks, tenants and engine cores. Belongs to the event loop."""

    def __init__(self, registry: RequestRegistry, engine: EngineClient) -> None:
        self._engine = engine
        self._local = LocalRequests(registry, engine)
        self._turns = TenantTurns(None, share=lambda tenant: 1)

    async def list_requests(self, request: pb.ListRequestsRequest, caller: Caller) -> pb.ListRequestsResponse:
        """Returns a page of the requests in flight that the caller may see, the oldest first. Without a core
        that serves, those of this frontend. Raises InvalidRequest, AdminsOnly, EngineNotReady."""
        tenant = caller.may_see(request.tenant)
        page = read_page(request, tenant)
        wanted = engine_pb2.ListRequests(limit=page.size + 1, tenant=tenant, after=page.after)
        call = engine_pb2.Utility(list_requests=wanted)
        found, response = [], pb.ListRequestsResponse()
        for core, result in await self._ask(call, caller) if self._engine.serves else []:
            response.total += result.requests.total
            for info in result.requests.requests:
                info.rank = core.rank
                self._local.refine(info)
                found.append(info)
        others = self._local.without_core(tenant, {info.request_id for info in found})
        response.total += len(others)
        requests, response.next_page_token = page.cut(
            found + others, lambda info: (info.arrival_time.ToNanoseconds(), info.request_id)
        )
        response.requests.extend(requests)
        for info in response.requests:
            info.request_id = _public_id(info.request_id, info.tenant, caller)
        return response

    async def explain_request(
        self, request: pb.ExplainRequestRequest, caller: Caller
    ) -> pb.ExplainRequestResponse:
        """Returns where a request's time went, what it waits for, which requests share its blocks, and what
        it runs with. Raises InvalidRequest, AdminsOnly, RequestNotFound, EngineNotReady."""
        if not 1 <= len(request.request_id.encode()) <= MAX_ID_BYTES:
            raise InvalidRequest({"request_id": f"must be 1 to {MAX_ID_BYTES} bytes"})
        engine_id = self._engine_id(request, caller)
        response = pb.ExplainRequestResponse()
        call = engine_pb2.Utility(explain_request=engine_pb2.ExplainRequest(request_id=engine_id))
        for core, result in await self._ask(call, caller) if self._engine.serves else []:
            if result.explanation.HasField("request"):
                response = result.explanation
                response.request.rank = core.rank
                self._local.refine(response.request)
        if not response.HasField("request"):
            local = self._local.find(engine_id)
            if local is None:
                raise RequestNotFound(request.request_id)
            response.request.CopyFrom(local)
        parameters = self._local.parameters(engine_id)
        if parameters is not None:
            response.parameters.CopyFrom(parameters)
        tenant = response.request.tenant
        response.request.request_id = _public_id(response.request.request_id, tenant, caller)
        for sharer in response.sharers:
            sharer.request_id = _public_id(sharer.request_id, tenant, caller)
        return response

    async def kv_pool(self, request: pb.GetKvPoolRequest, caller: Caller) -> pb.GetKvPoolResponse:
        """Returns the KV pool of each engine core. Raises InvalidRequest, EngineNotReady."""
        cells = request.max_cells if request.HasField("max_cells") else DEFAULT_CELLS
        if not 1 <= cells <= MAX_CELLS:
            raise InvalidRequest({"max_cells": f"must be 1 to {MAX_CELLS}, not {cells}"})
        response, picture = pb.GetKvPoolResponse(), pb.GetKvPoolRequest(max_cells=cells)
        for core, result in await self._ask(engine_pb2.Utility(get_kv_pool=picture), caller):
            result.kv_pool.rank = core.rank
            for holder in result.kv_pool.holders:
                holder.request_id = _public_id(holder.request_id, holder.tenant, caller)
            response.pools.append(result.kv_pool)
        return response

    async def list_tenants(self, request: pb.ListTenantsRequest, caller: Caller) -> pb.ListTenantsResponse:
        """Returns a page of the tenants with requests in flight, or the largest. Raises InvalidRequest,
        EngineNotReady."""
        page = read_page(request)
        wanted = pb.ListTenantsRequest(page_size=page.size + 2, page_token=page.after.name)
        if request.HasField("limit"):
            wanted = pb.ListTenantsRequest(limit=request.limit)
        found, response = [], pb.ListTenantsResponse()
        for core, result in await self._ask(engine_pb2.Utility(list_tenants=wanted), caller):
            response.total += result.tenants.total
            for info in result.tenants.tenants:
                info.rank = core.rank
                found.append(info)
        if not request.HasField("limit"):
            found, response.next_page_token = page.cut(found, lambda info: (1, info.tenant))
        response.tenants.extend(found)
        return response

    def list_engines(self) -> pb.ListEnginesResponse:
        """Returns the engine cores as this frontend sees them, and their last deaths and resumptions."""
        engines = [_describe(core) for core in self._engine.cores]
        return pb.ListEnginesResponse(engines=engines, events=self._engine.events.latest())

    def _engine_id(self, request: pb.ExplainRequestRequest, caller: Caller) -> str:
        """Returns the engine's id of a request that the caller may see. Raises AdminsOnly, InvalidRequest."""
        if caller.tenant is None:
            if request.tenant:
                raise InvalidRequest(
                    {"tenant": "must be empty without authentication: ids belong to no tenant"}
                )
            return request.request_id
        return scope(caller.may_see(request.tenant) or caller.tenant, request.request_id)

    async def _ask(
        self, call: engine_pb2.Utility, caller: Caller
    ) -> list[tuple[Core, engine_pb2.UtilityResult]]:
        """Returns the cores' answers. Raises EngineNotReady, also when a core has none."""
        async with self._turns.turn(caller.tenant or ""):
            answers = await self._engine.questions.ask(call)
        if any(result.WhichOneof("result") is None for _, result in answers):
            raise EngineNotReady("the engine has too many questions to answer, or does not know this one")
        return answers


def _public_id(engine_id: str, tenant: str, caller: Caller) -> str:
    """Returns the id that a request's client knows; see Caller.scope()."""
    return engine_id if caller.tenant is None else engine_id.removeprefix(f"{tenant}/")


_ROLES = {
    engine_pb2.CORE_ROLE_UNSPECIFIED: pb.ENGINE_ROLE_BOTH,
    engine_pb2.CORE_ROLE_PREFILL: pb.ENGINE_ROLE_PREFILL,
    engine_pb2.CORE_ROLE_DECODE: pb.ENGINE_ROLE_DECODE,
}


def _describe(core: Core) -> pb.EngineInfo:
    """Returns what this frontend knows of an engine core."""
    state = pb.ENGINE_STATE_SERVING
    if not core.epoch:
        state = pb.ENGINE_STATE_AWAY
    elif not core.serves:
        state = pb.ENGINE_STATE_LEAVING if core.leaving else pb.ENGINE_STATE_UNUSED
    info = pb.EngineInfo(
        rank=core.rank,
        state=state,
        address=core.address,
        requests_in_flight=core.num_in_flight,
        unanswered_heartbeats=max(core.num_unanswered - 1, 0),
        differs=core.differs,
    )
    if (welcome := core.welcome) is not None:
        info.instance_id, info.version = welcome.instance_id, welcome.engine_version
        info.start_time.CopyFrom(welcome.start_time)
        info.device, info.architecture = welcome.device, welcome.model.architecture
        info.arithmetic = welcome.model.arithmetic
        info.num_blocks, info.max_num_seqs = welcome.num_blocks, welcome.max_num_seqs
        info.role = _ROLES[welcome.role]
    return info
