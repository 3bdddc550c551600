"""One path of the HTTP port: what a request passes before it is answered, and how failures are told."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Any

from frontend.auth.caller import Caller
from frontend.call.call import Call
from frontend.call.messages import LARGE_MESSAGE_BYTES
from frontend.errors import InternalError, ServiceError, SlowConsumer
from frontend.http.error_body import error_body, error_headers
from frontend.http.errors import BodyTooSlow, DeadlineExceeded, Disconnected
from frontend.http.exchange import Exchange, Receive, Scope, Send, check_origin, until_disconnect
from frontend.parts import FrontendParts
from pagewire.logs import traceback_of
from pagewire.telemetry.tracing import read_trace_context

log = logging.getLogger(__name__)

RECEIVE_TIMEOUT_S = 30.0
"""Seconds that a request's body may take to arrive."""
DISCONNECTED = 499
"""Status under which requests are counted whose client went away first."""

Handle = Callable[[FrontendParts, dict[str, Any], Call, Exchange], Awaitable[None]]
Slot = Callable[[Caller | None], AbstractContextManager[None]]
ErrorBody = Callable[[ServiceError], dict[str, Any]]


class Endpoint:
    """An ASGI application for one path: admits a request, and answers it, also when that fails."""

    def __init__(
        self, parts: FrontendParts, path: str, handle: Handle, slot: Slot, tell: ErrorBody = error_body
    ) -> None:
        """path: of the route. slot: holds one for the request's time. tell: makes the JSON of an error."""
        self._parts = parts
        self._path = path
        self._handle = handle
        self._slot = slot
        self._tell = tell

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
            await self._refuse(exchange, error)
        except (Disconnected, asyncio.CancelledError):
            raise
        except Exception as error:
            log.error("%s failed: %s", self._path, traceback_of(error))
            await self._refuse(exchange, InternalError())

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

    async def _refuse(self, exchange: Exchange, error: ServiceError) -> None:
        """Answers with an error; an answer that has begun ends in the middle. Raises SlowConsumer."""
        if not exchange.status:
            await exchange.respond(error.http_status, self._tell(error), error_headers(error))
        elif exchange.failure is not None and not exchange.ended:
            await exchange.end_events(exchange.failure(error))
        elif not exchange.ended:
            exchange.abort()
