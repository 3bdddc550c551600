# Generated from operations_aio.py by scripts/clients.py: change that file, then run 'make clients'.
"""What a client asks about the service, and what operators tell it, for threads."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
from grpc_health.v1 import health_pb2

from pagewire.v1 import admin_pb2, inspection_pb2, model_pb2
from pagewire_client.errors import RpcError, Unavailable, from_grpc
from pagewire_client.frontends import FrontendStatus, frontend_states
from pagewire_client.transport import channel, io_sync
from pagewire_client.transport.connections import Connections

_POLL_S = 0.05
_NOT_READY = "the service is not ready: it starts, drains, or has no engine"
T = TypeVar("T")


class Pager(Generic[T]):
    """Iterates over a list that the server sends in pages, and requests each page when it is needed.

    `total` is the number of items that the list had when the last page was sent. A new iteration begins with
    the first page. Raises RpcError.
    """

    total = 0

    def __init__(self, field: str, request: Any, send: Callable[[Any], Any]) -> None:
        """field: name of the items in a response. request: that of the first page."""
        self._field, self._request, self._send = field, request, send

    def __iter__(self) -> Iterator[T]:
        self._request.page_token = ""
        while True:
            page = self._send(self._request)
            self.total = page.total
            yield from getattr(page, self._field)
            if not page.next_page_token:
                return
            self._request.page_token = page.next_page_token


class Operations(Connections):
    """Calls about the service: its models and adapters, its load, the requests in flight, and its state."""

    def models(self, *, timeout: float | None = None) -> list[model_pb2.Model]:
        """Returns the models that requests can name."""
        response = self._unary(channel.LIST_MODELS, model_pb2.ListModelsRequest(), timeout)
        return list(response.models)

    def model(self, name: str = "", *, timeout: float | None = None) -> model_pb2.Model:
        """Returns the model with this served name; default: the client's model."""
        request = model_pb2.GetModelRequest(name=name or self._model)
        response = self._unary(channel.GET_MODEL, request, timeout)
        return response.model

    def load_adapter(
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
        response = self._unary(channel.LOAD_ADAPTER, request, timeout)
        return response.adapter.adapter

    def unload_adapter(self, name: str, *, timeout: float | None = None) -> None:
        """Unloads a LoRA adapter, for admins. Returns when no request has it any more."""
        self._unary(channel.UNLOAD_ADAPTER, model_pb2.UnloadAdapterRequest(name=name), timeout)

    def adapters(self, *, timeout: float | None = None) -> list[model_pb2.Adapter]:
        """Returns all LoRA adapters, for admins."""
        response = self._unary(channel.LIST_ADAPTERS, model_pb2.ListAdaptersRequest(), timeout)
        return list(response.adapters)

    def server_info(self, *, timeout: float | None = None) -> admin_pb2.GetServerInfoResponse:
        """Returns the versions, configuration and state of the server."""
        return self._unary(channel.GET_SERVER_INFO, admin_pb2.GetServerInfoRequest(), timeout)

    def load(self, *, timeout: float | None = None) -> admin_pb2.Load:
        """Returns how busy the service is."""
        response = self._unary(channel.GET_LOAD, admin_pb2.GetLoadRequest(), timeout)
        return response.load

    def list_requests(
        self, *, tenant: str = "", page_size: int = 0, timeout: float | None = None
    ) -> Pager[inspection_pb2.RequestInfo]:
        """Iterates over the requests in flight, the oldest first. With authentication, the token's own; with
        an admin's token all, or those of `tenant`. page_size: requests in a response, 1 to 1000; 0: 100.
        timeout: seconds, for each page."""
        request = inspection_pb2.ListRequestsRequest(tenant=tenant, page_size=page_size)
        return Pager("requests", request, partial(self._unary, channel.LIST_REQUESTS, timeout=timeout))

    def explain_request(
        self, request_id: str, *, tenant: str = "", timeout: float | None = None
    ) -> inspection_pb2.ExplainRequestResponse:
        """Returns where a request's time went, what it waits for and which requests share its KV blocks.
        Raises NotFound when it is not in flight. tenant: of the request, for admins."""
        request = inspection_pb2.ExplainRequestRequest(request_id=request_id, tenant=tenant)
        return self._unary(channel.EXPLAIN_REQUEST, request, timeout)

    def kv_pool(self, *, max_cells: int = 1024, timeout: float | None = None) -> list[inspection_pb2.KvPool]:
        """Returns the KV pool of each engine core, as a picture of at most so many cells (1 to 16384)."""
        request = inspection_pb2.GetKvPoolRequest(max_cells=max_cells)
        response = self._unary(channel.GET_KV_POOL, request, timeout)
        return list(response.pools)

    def list_tenants(
        self, *, page_size: int = 0, timeout: float | None = None
    ) -> Pager[inspection_pb2.TenantInfo]:
        """Iterates over the tenants with requests in flight, by name and then by engine core. page_size:
        tenants in a response, 1 to 1000; 0: 100. timeout: seconds, for each page."""
        request = inspection_pb2.ListTenantsRequest(page_size=page_size)
        return Pager("tenants", request, partial(self._unary, channel.LIST_TENANTS, timeout=timeout))

    def list_engines(self, *, timeout: float | None = None) -> inspection_pb2.ListEnginesResponse:
        """Returns the engine cores with their health, and their last deaths and resumptions."""
        return self._unary(channel.LIST_ENGINES, inspection_pb2.ListEnginesRequest(), timeout)

    def watch_load(
        self, min_interval: float | None = None, *, timeout: float | None = None
    ) -> Iterator[admin_pb2.Load]:
        """Yields the load now and whenever it has changed, at most once in `min_interval` seconds."""
        request = admin_pb2.WatchLoadRequest()
        if min_interval is not None:
            request.min_interval.FromNanoseconds(int(min_interval * 1e9))
        call = self._streaming(channel.WATCH_LOAD, request, timeout)
        try:
            for response in call:
                yield response.load
        except grpc.RpcError as error:
            raise from_grpc(error) from None
        finally:
            call.cancel()

    def reset_cache(self, *, timeout: float | None = None) -> None:
        """Empties the prefix cache of the service."""
        self._unary(channel.RESET_CACHE, admin_pb2.ResetCacheRequest(), timeout)

    def drain(
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
        response = self._unary(channel.DRAIN, request, timeout)
        return frontend_states(response)

    def resume(
        self, *, frontend: str = "", all_frontends: bool = False, timeout: float | None = None
    ) -> list[FrontendStatus]:
        """Ends a drain: the frontends, chosen as for drain(), accept requests again. Returns them."""
        request = admin_pb2.ResumeRequest(frontend=frontend, all_frontends=all_frontends)
        response = self._unary(channel.RESUME, request, timeout)
        return frontend_states(response)

    def healthy(self, *, timeout: float | None = 5.0) -> bool:
        """Returns True when the service accepts requests. Raises Unavailable when no server answers."""
        response = self._unary(channel.CHECK, health_pb2.HealthCheckRequest(), timeout)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Waits until the service accepts requests. Raises the last RpcError after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.healthy():
                    return
                problem: RpcError = Unavailable(grpc.StatusCode.UNAVAILABLE, _NOT_READY)
            except RpcError as error:
                problem = error
            if time.monotonic() + _POLL_S > deadline:
                raise problem
            io_sync.sleep(_POLL_S)
