"""AdminService."""

import asyncio
import contextlib
import dataclasses
import time
from typing import Any

from google.protobuf import struct_pb2, timestamp_pb2

from frontend.engine.core import Core
from frontend.errors import Draining
from frontend.inspector import Inspector
from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context, current_caller, sender
from frontend.rpc.error_mapping import guarded, unimplemented
from frontend.rpc.fleet import Fleet
from frontend.validation.rules import seconds_of
from pagewire import __version__
from pagewire.v1 import admin_pb2, admin_pb2_grpc
from pagewire.v1 import inspection_pb2 as pb

DEFAULT_INTERVAL = 1.0
SHORTEST_INTERVAL = 0.05
"""Seconds between two load messages, at least. Each one costs the core a message."""


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """RPCs for operators and routers."""

    def __init__(self, parts: FrontendParts, fleet: Fleet, inspector: Inspector) -> None:
        self._parts, self._fleet, self._inspector = parts, fleet, inspector
        self._start_time = _now()

    @guarded
    async def GetServerInfo(
        self, request: admin_pb2.GetServerInfoRequest, context: Context
    ) -> admin_pb2.GetServerInfoResponse:
        info = admin_pb2.GetServerInfoResponse(
            version=__version__,
            instance_id=self._parts.engine.identity.hex(),
            state=self._parts.state.state,
            start_time=self._start_time,
            config=struct_pb2.Struct(),
        )
        info.config.update(_as_json(dataclasses.asdict(self._parts.config)))
        info.config.update({"engines": [_describe(core) for core in self._parts.engine.cores]})
        facts = self._parts.engine.facts
        if facts is not None:
            info.engine_version = facts.engine_version
            info.parallelism.CopyFrom(facts.parallelism)
            info.config.update(
                {
                    "device": facts.device,
                    "block_size": facts.block_size,
                    "num_blocks": facts.num_blocks,
                    "max_num_seqs": facts.max_num_seqs,
                    "max_num_batched_tokens": facts.max_num_batched_tokens,
                    "max_model_len": facts.model.max_model_len,
                    "dtype": facts.model.dtype,
                }
            )
        return info

    @guarded
    async def GetLoad(self, request: admin_pb2.GetLoadRequest, context: Context) -> admin_pb2.GetLoadResponse:
        return admin_pb2.GetLoadResponse(load=_load(await self._parts.engine.questions.loads()))

    @guarded
    async def WatchLoad(self, request: admin_pb2.WatchLoadRequest, context: Context) -> None:
        interval = _interval(request)
        last = None
        with self._parts.write_timeouts.writer(sender(context)) as writer:
            while True:
                loads = await self._parts.engine.questions.loads()
                if loads != last:
                    last = loads
                    await writer.write(admin_pb2.WatchLoadResponse(load=_load(loads)))
                if not self._parts.state.closes:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._parts.state.changed(), interval)
                if self._parts.state.closes:  # an endless stream would keep the server from stopping
                    raise Draining

    @guarded
    async def Drain(self, request: admin_pb2.DrainRequest, context: Context) -> admin_pb2.DrainResponse:
        frontends = await self._fleet.order(request)
        total = sum(status.in_flight_requests for status in frontends)
        return admin_pb2.DrainResponse(in_flight_requests=total, frontends=frontends)

    @guarded
    async def Resume(self, request: admin_pb2.ResumeRequest, context: Context) -> admin_pb2.ResumeResponse:
        return admin_pb2.ResumeResponse(frontends=await self._fleet.order(request))

    @guarded
    async def ResetCache(
        self, request: admin_pb2.ResetCacheRequest, context: Context
    ) -> admin_pb2.ResetCacheResponse:
        await self._parts.engine.questions.reset_cache()
        return admin_pb2.ResetCacheResponse()

    @guarded
    async def ListRequests(
        self, request: pb.ListRequestsRequest, context: Context
    ) -> pb.ListRequestsResponse:
        return await self._inspector.list_requests(request, current_caller())

    @guarded
    async def ExplainRequest(
        self, request: pb.ExplainRequestRequest, context: Context
    ) -> pb.ExplainRequestResponse:
        return await self._inspector.explain_request(request, current_caller())

    @guarded
    async def GetKvPool(self, request: pb.GetKvPoolRequest, context: Context) -> pb.GetKvPoolResponse:
        return await self._inspector.kv_pool(request, current_caller())

    @guarded
    async def ListTenants(self, request: pb.ListTenantsRequest, context: Context) -> pb.ListTenantsResponse:
        return await self._inspector.list_tenants(request, current_caller())

    @guarded
    async def ListEngines(self, request: pb.ListEnginesRequest, context: Context) -> pb.ListEnginesResponse:
        return self._inspector.list_engines()

    StartProfile = unimplemented("StartProfile")
    StopProfile = unimplemented("StopProfile")


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _describe(core: Core) -> dict[str, Any]:
    """Returns what this frontend knows of an engine core."""
    state = "serving" if core.serves else "not used" if core.epoch else "away"
    about: dict[str, Any] = {"rank": core.rank, "state": state}
    if core.differs:
        about["differs"] = core.differs
    if core.welcome is not None:
        about |= {
            "instance_id": core.welcome.instance_id,
            "version": core.welcome.engine_version,
            "device": core.welcome.device,
            "num_blocks": core.welcome.num_blocks,
        }
    return about


def _interval(request: admin_pb2.WatchLoadRequest) -> float:
    """Returns the seconds between two messages. Raises InvalidRequest."""
    if not request.HasField("min_interval"):
        return DEFAULT_INTERVAL
    return max(seconds_of(request.min_interval, "min_interval"), SHORTEST_INTERVAL)


def _load(ranks: list[admin_pb2.RankLoad]) -> admin_pb2.Load:
    return admin_pb2.Load(time=_now(), ranks=ranks)


def _now() -> timestamp_pb2.Timestamp:
    now = timestamp_pb2.Timestamp()
    now.FromNanoseconds(time.time_ns())
    return now
