"""The OpenAI API on a port: the ASGI application, what requests pass before their endpoints, and the server.

Starlette routes, and answers for paths that do not exist; requests and answers are frontend.http's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from itertools import chain
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from frontend.auth.caller import Caller
from frontend.call.call import Call
from frontend.call.messages import LARGE_MESSAGE_BYTES
from frontend.errors import InternalError, ServiceError, SlowConsumer
from frontend.http.errors import BodyTooSlow, DeadlineExceeded, Disconnected, NotServed
from frontend.http.exchange import Exchange, Receive, Scope, Send, check_origin, until_disconnect
from frontend.http.server import HttpServer
from frontend.openai import embeddings, endpoints, tokens
from frontend.openai.responses.errors import error_body, error_headers
from frontend.parts import FrontendParts
from pagewire.host.tls import Certificates
from pagewire.logs import traceback_of
from pagewire.telemetry.tracing import read_trace_context

log = logging.getLogger(__name__)

RECEIVE_TIMEOUT_S = 30.0
"""Seconds that a request's body may take to arrive."""
DISCONNECTED = 499
"""Status under which requests are counted whose client went away first."""

Handle = Callable[[FrontendParts, dict[str, Any], Call, Exchange], Awaitable[None]]
Slot = Callable[[Caller | None], AbstractContextManager[None]]


class Endpoint:
    """An ASGI application for one path: admits a request, and answers it, also when that fails."""

    def __init__(self, parts: FrontendParts, path: str, handle: Handle, slot: Slot) -> None:
        """path: of the route. slot: holds one for the request's time."""
        self._parts = parts
        self._path = path
        self._handle = handle
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts, status = self._parts, DISCONNECTED
        with parts.write_timeouts.writer(send) as writer:
            exchange = Exchange(scope, receive, writer)
            try:
                await self._answer(exchange)
                status = exchange.status
            except Disconnected:
                pass
            except SlowConsumer:
                exchange.abort()
            finally:
                parts.counters.http_requests[self._path, str(status)] += 1

    async def _answer(self, exchange: Exchange) -> None:
        """Serves a request, or says why not. Raises Disconnected, SlowConsumer."""
        try:
            await self._serve(exchange)
        except SlowConsumer:
            raise
        except ServiceError as error:
            await _refuse(exchange, error)
        except (Disconnected, asyncio.CancelledError):
            raise
        except Exception as error:
            log.error("%s failed: %s", self._path, traceback_of(error))
            await _refuse(exchange, InternalError())

    async def _serve(self, exchange: Exchange) -> None:
        config, authenticator = self._parts.config, self._parts.authenticator
        check_origin(exchange.headers, config.openai_allowed_host, any_host=bool(config.auth_file))
        caller = authenticator.authenticate(self._path, exchange.header_list)
        with self._slot(caller):
            body: dict[str, Any] = {}
            if exchange.method == "POST":
                body = await self._receive(exchange, caller)
            method, trace = f"{exchange.method} {self._path}", read_trace_context(exchange.header_list)
            time_left = exchange.time_left
            assert caller is not None  # no path is public but /health
            call = Call(caller, time_left, method, trace)
            try:
                async with until_disconnect(exchange.receive), asyncio.timeout(time_left):
                    await self._handle(self._parts, body, call, exchange)
            except TimeoutError:
                raise DeadlineExceeded from None

    async def _receive(self, exchange: Exchange, caller: Caller | None) -> dict[str, Any]:
        """Returns the object in the body of a request. A tenant's bodies arrive a few at a time, and large
        ones are parsed in turns. Raises ServiceError, Disconnected."""
        assert caller is not None
        slots, config = self._parts.receiving_slots, self._parts.config
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(RECEIVE_TIMEOUT_S):
                    arrived = await stack.enter_async_context(slots.receiving(caller))
                    body = await exchange.read(config.max_request_bytes, RECEIVE_TIMEOUT_S)
            except TimeoutError:  # while it waited for its turn
                raise BodyTooSlow(RECEIVE_TIMEOUT_S) from None
            arrived(len(body))
            if len(body) >= LARGE_MESSAGE_BYTES:
                parsed: dict[str, Any] = await self._parts.large_messages.decode(exchange.parse, body, caller)
                return parsed
        return exchange.parse(body)


async def _refuse(exchange: Exchange, error: ServiceError) -> None:
    """Answers with an error; an answer that has begun ends in the middle. Raises SlowConsumer."""
    if not exchange.status:
        await exchange.respond(error.http_status, error_body(error), error_headers(error))
    elif exchange.failure is not None and not exchange.ended:
        await exchange.end_events(exchange.failure(error))
    elif not exchange.ended:
        exchange.abort()


class Health:
    """GET /health: 200 when requests are accepted, else 503; without a token, for load balancers."""

    def __init__(self, parts: FrontendParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._parts.write_timeouts.writer(send) as writer:
            serves = self._parts.state.serves
            status, word = (200, "SERVING") if serves else (503, "NOT_SERVING")
            await Exchange(scope, receive, writer).respond(status, {"status": word})


def make_app(parts: FrontendParts, more_routes: Iterable[Route] = ()) -> Starlette:
    """Returns the application. more_routes: of what else the port serves."""
    call, control = parts.limits.call, parts.limits.control

    def route(method: str, path: str, handle: Handle, slot: Slot) -> Route:
        return Route(path, Endpoint(parts, path, handle, slot), methods=[method])

    routes = [
        route("POST", "/v1/chat/completions", endpoints.chat_completions, call),
        route("POST", "/v1/completions", endpoints.completions, call),
        route("POST", "/v1/responses", endpoints.responses, call),
        route("POST", "/v1/embeddings", embeddings.embeddings, call),
        route("POST", "/tokenize", tokens.tokenize, call),
        route("POST", "/detokenize", tokens.detokenize, call),
        route("GET", "/v1/models", endpoints.list_models, control),
        route("GET", "/v1/models/{name:path}", endpoints.get_model, control),
        Route("/health", Health(parts), methods=["GET"]),
        *more_routes,
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _not_served})


async def _not_served(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    what = "there is no such path" if error.status_code == 404 else "the path does not take this method"
    refusal = NotServed(error.status_code, f"{what}; docs/openai.md lists what is served")
    return JSONResponse(error_body(refusal), error.status_code, error.headers)


class Extension(Protocol):
    """What else the port serves: a plug-in of the group `pagewire.http`, such as the console."""

    name: str
    """Names its URL in the ready line."""
    path: str
    """Where it begins."""

    def routes(self) -> Iterator[Route]:
        """Yields its routes."""

    def start(self) -> None:
        """Starts its tasks, on the running loop."""

    async def stop(self) -> None:
        """Ends them. Idempotent."""


class OpenAiServer:
    """Serves one frontend's endpoints."""

    def __init__(
        self,
        parts: FrontendParts,
        port: int,
        certificates: Certificates | None = None,
        extensions: Sequence[Extension] = (),
    ) -> None:
        """port: 0: a free one. certificates: None: no TLS. Raises StartupError."""
        self._config = parts.config
        self._port = port
        self._scheme = "http" if certificates is None else "https"
        context = certificates.server_context() if certificates is not None else None
        self._extensions = extensions
        more_routes = chain.from_iterable(each.routes() for each in extensions)
        self._server = HttpServer(make_app(parts, more_routes), parts.config, context)

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the ready line: the base URL of clients, and those of extensions."""
        host = self._config.openai_host
        host = f"[{host}]" if ":" in host else host
        base = f"{self._scheme}://{host}:{self._port}"
        return {"openai": f"{base}/v1"} | {each.name: f"{base}{each.path}" for each in self._extensions}

    def open(self) -> int:
        """Opens the port and returns its number. Raises StartupError."""
        self._port = self._server.open(self._port)
        return self._port

    async def start(self) -> None:
        """Starts answering."""
        for each in self._extensions:
            each.start()
        await self._server.start()

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)
        for each in self._extensions:
            await each.stop()
