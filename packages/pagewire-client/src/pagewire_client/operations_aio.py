"""What a client asks about the service, and what operators tell it, for asyncio."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
from grpc_health.v1 import health_pb2

from pagewire.v1 import admin_pb2, inspection_pb2, model_pb2
from pagewire_client.errors import RpcError, Unavailable, from_grpc
from pagewire_client.frontends import FrontendStatus, frontend_states
from pagewire_client.transport import channel, io_aio
from pagewire_client.transport.connections_aio import AsyncConnections

_POLL_S = 0.05
_NOT_READY = "the service is not ready: it starts, drains, or has no engine"
T = TypeVar("T")


class AsyncPager(Generic[T]):
    """Iterates over a list that the server sends in pages, and requests each page when it is needed.

    `total` is the number of items that the list had when the last page was sent. A new iteration begins with
    the first page. Raises RpcError.
    """

    total = 0

    def __init__(self, field: str, request: Any, send: Callable[[Any], Any]) -> None:
        """field: name of the items in a response. request: that of the first page."""
        self._field, self._request, self._send = field, request, send

    async def __aiter__(self) -> AsyncIterator[T]:
        self._request.page_token = ""
        while True:
            page = await self._send(self._request)
            self.total = page.total
            for item in getattr(page, self._field):
                yield item
            if not page.next_page_token:
                return
            self._request.page_token = page.next_page_token


class AsyncOperations(AsyncConnections):
    """Calls about the service: its models and adapters, its load, the requests in flight, and its state."""

    async def models(self, *, timeout: float | None = None) -> list[model_pb2.Model]:
        """Returns the models that requests can name."""
        response = await self._unary(channel.LIST_MODELS, model_pb2.ListModelsRequest(), timeout)
        return list(response.models)

    async def model(self, name: str = "", *, timeout: float | None = None) -> model_pb2.Model:
        """Returns the model with this served name; default: the client's model."""
        request = model_pb2.GetModelRequest(name=name or self._model)
        response = await self._unary(channel.GET_MODEL, request, timeout)
        return response.model

    async def load_adapter(
        self,
        name: str,
        source: str = "",
        *,
        pinned: bool = False,
        tenants: Sequence[str] = (),
        timeout: float | None = None,
    ) -> model_pb2.Adapter:
        """Loads a LoRA adapter, for admins. Requests name it as their model. source: its folder on the
        engine's host, below --lora-folder, or its name on the Hugging Face Hub (--lora-hub); "": the
        subfolder with that name. pinned: it stays loaded. tenants: those that may use it; none: all."""
        request = model_pb2.LoadAdapterRequest(name=name, source=source, pinned=pinned, tenants=tenants)
        response = await self._unary(channel.LOAD_ADAPTER, request, timeout)
        return response.adapter.adapter

    async def unload_adapter(self, name: str, *, timeout: float | None = None) -> None:
        """Unloads a LoRA adapter, for admins. Returns when no request has it any more."""
        await self._unary(channel.UNLOAD_ADAPTER, model_pb2.UnloadAdapterRequest(name=name), timeout)

    async def adapters(self, *, timeout: float | None = None) -> list[model_pb2.Adapter]:
        """Returns all LoRA adapters, for admins."""
        response = await self._unary(channel.LIST_ADAPTERS, model_pb2.ListAdaptersRequest(), timeout)
        return list(response.adapters)

    async def server_info(self, *, timeout: float | None = None) -> admin_pb2.GetServerInfoResponse:
        """Returns the versions, configuration and state of the server."""
        return await self._unary(channel.GET_SERVER_INFO, admin_pb2.GetServerInfoRequest(), timeout)

    async def load(self, *, timeout: float | None = None) -> admin_pb2.Load:
        """Returns how busy the service is."""
        response = await self._unary(channel.GET_LOAD, admin_pb2.GetLoadRequest(), timeout)
        return response.load

    def list_requests(
        self, *, tenant: str = "", page_size: int = 0, timeout: float | None = None
    ) -> AsyncPager[inspection_pb2.RequestInfo]:
        """Iterates over the requests in flight, the oldest first. With authentication, the token's own; with
        an admin's token all, or those of `tenant`. page_size: requests in a response, 1 to 1000; 0: 100.
        timeout: seconds, for each page."""
        request = inspection_pb2.ListRequestsRequest(tenant=tenant, page_size=page_size)
        return AsyncPager("requests", request, partial(self._unary, channel.LIST_REQUESTS, timeout=timeout))

    async def explain_request(
        self, request_id: str, *, tenant: str = "", timeout: float | None = None
    ) -> inspection_pb2.ExplainRequestResponse:
        """Returns where a request's time went, what it waits for and which requests share its KV blocks.
        Raises NotFound when it is not in flight. tenant: of the request, for admins."""
        request = inspection_pb2.ExplainRequestRequest(request_id=request_id, tenant=tenant)
        return await self._unary(channel.EXPLAIN_REQUEST, request, timeout)

    async def kv_pool(
        self, *, max_cells: int = 1024, timeout: float | None = None
    ) -> list[inspection_pb2.KvPool]:
        """Returns the KV pool of each engine core, as a picture of at most so many cells (1 to 16384)."""
        request = inspection_pb2.GetKvPoolRequest(max_cells=max_cells)
        response = await self._unary(channel.GET_KV_POOL, request, timeout)
        return list(response.pools)

    def list_tenants(
        self, *, page_size: int = 0, timeout: float | None = None
    ) -> AsyncPager[inspection_pb2.TenantInfo]:
        """Iterates over the tenants with requests in flight, by name and then by engine core. page_size:
        tenants in a response, 1 to 1000; 0: 100. timeout: seconds, for each page."""
        request = inspection_pb2.ListTenantsRequest(page_size=page_size)
        return AsyncPager("tenants", request, partial(self._unary, channel.LIST_TENANTS, timeout=timeout))

    async def list_engines(self, *, timeout: float | None = None) -> inspection_pb2.ListEnginesResponse:
        """Returns the engine cores with their health, and their last deaths and resumptions."""
        return await self._unary(channel.LIST_ENGINES, inspection_pb2.ListEnginesRequest(), timeout)

    async def watch_load(
        self, min_interval: float | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[admin_pb2.Load]:
        """Yields the load now and whenever it has changed, at most once in `min_interval` seconds."""
        request = admin_pb2.WatchLoadRequest()
        if min_interval is not None:
            request.min_interval.FromNanoseconds(int(min_interval * 1e9))
        call = self._streaming(channel.WATCH_LOAD, request, timeout)
        try:
            async for response in call:
                yield response.load
        except grpc.RpcError as error:
            raise from_grpc(error) from None
        finally:
            call.cancel()

    async def reset_cache(self, *, timeout: float | None = None) -> None:
        """Empties the prefix cache of the service."""
        await self._unary(channel.RESET_CACHE, admin_pb2.ResetCacheRequest(), timeout)

    async def drain(
        self,
        end_after: float | None = None,
        *,
        frontend: str = "",
        all_frontends: bool = False,
        timeout: float | None = None,
    ) -> list[FrontendStatus]:
        """Makes frontends refuse new requests; returns them, each with the number of its requests in flight.

        end_after: seconds after which the rest ends, to be continued on another frontend; None: no limit.
        frontend: name, address or id of one, or all_frontends; default: the one that gets the call.
        """
        request = channel.drain_request(end_after, frontend, all_frontends)
        response = await self._unary(channel.DRAIN, request, timeout)
        return frontend_states(response)

    async def resume(
        self, *, frontend: str = "", all_frontends: bool = False, timeout: float | None = None
    ) -> list[FrontendStatus]:
        """Ends a drain: the frontends, chosen as for drain(), accept requests again. Returns them."""
        request = admin_pb2.ResumeRequest(frontend=frontend, all_frontends=all_frontends)
        response = await self._unary(channel.RESUME, request, timeout)
        return frontend_states(response)

    async def healthy(self, *, timeout: float | None = 5.0) -> bool:
        """Returns True when the service accepts requests. Raises Unavailable when no server answers."""
        response = await self._unary(channel.CHECK, health_pb2.HealthCheckRequest(), timeout)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    async def wait_ready(self, seconds: float = 60.0) -> None:
        """Waits until the service accepts requests. Raises the last RpcError after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if await self.healthy():
                    return
                problem: RpcError = Unavailable(grpc.StatusCode.UNAVAILABLE, _NOT_READY)
            except RpcError as error:
                problem = error
            if time.monotonic() + _POLL_S > deadline:
                raise problem
            await io_aio.sleep(_POLL_S)
