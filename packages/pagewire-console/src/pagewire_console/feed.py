"""What pages follow, asked of the engine cores once an interval however many pages are open, and not at all
while none is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from frontend.engine.client import EngineClient
from frontend.errors import ServiceError
from frontend.inspector import Inspector
from pagewire.internal.v1.engine_pb2 import NamedAdapter
from pagewire.v1 import inspection_pb2
from pagewire_console.viewer import Viewer
from pagewire_console.views import (
    Json,
    adapters_view,
    engines_view,
    events_view,
    pools_view,
    requests_view,
    tenants_view,
)

MAX_REQUESTS = 1000
MAX_TENANTS = 200
MAX_ADAPTERS = 200
MAX_CELLS = 2048
"""Most that a page is sent."""
_NO_REQUESTS = inspection_pb2.ListRequestsResponse()
M = TypeVar("M")
T = TypeVar("T")


class Feed:
    """The data of all open pages."""

    def __init__(self, inspector: Inspector, engine: EngineClient) -> None:
        self._inspector = inspector
        self._engine = engine
        self._asked: dict[str, tuple[int, asyncio.Task[Any]]] = {}

    async def requests(self, viewer: Viewer, interval: int) -> Json:
        """Returns the requests that a viewer may see; none while no core serves. interval: its number."""
        if not viewer.sees_own:
            return requests_view(_NO_REQUESTS)
        request = inspection_pb2.ListRequestsRequest(page_size=MAX_REQUESTS)

        async def ask() -> inspection_pb2.ListRequestsResponse:
            return await self._inspector.list_requests(request, viewer.caller)

        tenant = "" if viewer.is_operator else viewer.caller.tenant
        return await self._once(f"requests/{tenant}", interval, ask, requests_view, _NO_REQUESTS)

    async def tenants(self, viewer: Viewer, interval: int) -> list[Json]:
        """Returns the tenants, for operators."""
        request = inspection_pb2.ListTenantsRequest(limit=MAX_TENANTS)

        async def ask() -> inspection_pb2.ListTenantsResponse:
            return await self._inspector.list_tenants(request, viewer.caller)

        return await self._once("tenants", interval, ask, tenants_view, inspection_pb2.ListTenantsResponse())

    async def pools(self, viewer: Viewer, interval: int) -> list[Json]:
        """Returns the KV pools, for operators."""
        request = inspection_pb2.GetKvPoolRequest(max_cells=MAX_CELLS)

        async def ask() -> inspection_pb2.GetKvPoolResponse:
            return await self._inspector.kv_pool(request, viewer.caller)

        return await self._once("pools", interval, ask, pools_view, inspection_pb2.GetKvPoolResponse())

    async def adapters(self, interval: int) -> Json:
        """Returns LoRA adapters, for operators."""

        def view(adapters: list[NamedAdapter]) -> Json:
            return {"adapters": adapters_view(adapters)[:MAX_ADAPTERS], "total": len(adapters)}

        nothing: list[NamedAdapter] = []
        return await self._once("adapters", interval, self._engine.adapters.listed, view, nothing)

    def engines(self) -> Json:
        """Returns the engine cores and what happened to them, for operators."""
        response = self._inspector.list_engines()
        return {"engines": engines_view(response, self._engine.cores), "log": events_view(response)}

    async def _once(
        self, key: str, interval: int, ask: Callable[[], Awaitable[M]], view: Callable[[M], T], nothing: M
    ) -> T:
        """Returns a view of what is asked once for all pages in an interval; of `nothing` while no core
        answers."""

        async def run() -> T:
            try:
                return view(await ask())
            except ServiceError:
                return view(nothing)

        number, asking = self._asked.get(key, (-1, None))
        if number != interval or asking is None:
            asking = asyncio.create_task(run(), name=f"console {key.partition('/')[0]}")
            self._asked = {each: asked for each, asked in self._asked.items() if asked[0] >= interval - 1}
            self._asked[key] = interval, asking
        found: T = await asyncio.shield(asking)  # a page that goes away takes nothing from the others
        return found
