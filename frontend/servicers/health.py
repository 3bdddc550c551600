"""grpc.health.v1, without locks: the servicer of grpcio holds one while it writes to a watcher, so that one
watcher that does not read blocks every state change."""

from collections import Counter
from collections.abc import Collection

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context, find_caller, sender
from frontend.rpc.error_mapping import guarded

MAX_WATCHES = 32
"""Open Watches on one connection, of callers without a tenant: a client has one for each service."""


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # has no types
    """Reports one state for the whole server ("") and for each of its services."""

    def __init__(self, parts: FrontendParts, services: Collection[str]) -> None:
        self._parts, self._state = parts, parts.state
        self._services = frozenset(services) | {""}
        self._num_watches: Counter[str] = Counter()  # by connection

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def List(
        self, request: "health_pb2.HealthListRequest", context: Context
    ) -> "health_pb2.HealthListResponse":
        # grpcio-health-checking knows it from 1.85, which needs protobuf 7, and else does not register it.
        statuses = {
            name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in sorted(self._services)
        }
        return health_pb2.HealthListResponse(statuses=statuses)

    @guarded
    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        caller, connection = find_caller(), context.peer()
        is_stranger = caller is None or caller.tenant is None
        if is_stranger and self._num_watches[connection] >= MAX_WATCHES:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"a connection may have {MAX_WATCHES} open Watches"
            )
        self._num_watches[connection] += 1
        try:
            await self._watch(request, context)
        finally:
            self._num_watches[connection] -= 1
            if not self._num_watches[connection]:
                del self._num_watches[connection]

    async def _watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        with self._parts.write_timeouts.writer(sender(context)) as writer:
            last = None
            while True:
                status = self._status(request.service)
                if status != last:
                    last = status
                    await writer.write(health_pb2.HealthCheckResponse(status=status))
                elif self._state.closes:  # an endless stream would keep the server from stopping
                    return
                else:
                    await self._state.changed()

    def _status(self, service: str) -> "health_pb2.HealthCheckResponse.ServingStatus":
        if service not in self._services:
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        if self._state.serves:
            return health_pb2.HealthCheckResponse.SERVING
        return health_pb2.HealthCheckResponse.NOT_SERVING
