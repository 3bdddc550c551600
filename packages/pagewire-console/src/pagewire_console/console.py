"""The console as one object: its routes, and what they share."""

import asyncio
from collections.abc import Coroutine, Iterator
from itertools import count
from typing import Any

from google.protobuf.json_format import MessageToDict
from starlette.routing import Route

from frontend.call.call import Call
from frontend.errors import InvalidRequest
from frontend.http.endpoint import Endpoint
from frontend.http.exchange import Exchange, event
from frontend.inspector import Inspector
from frontend.parts import FrontendParts
from pagewire import __version__
from pagewire.host.addresses import is_loopback
from pagewire.v1 import admin_pb2, inspection_pb2
from pagewire_console.feed import MAX_ADAPTERS, Feed
from pagewire_console.history import COLUMNS, INTERVAL_S, LENGTH, History
from pagewire_console.page_files import HOME, page_routes
from pagewire_console.viewer import Viewer, viewer_of
from pagewire_console.views import Json, explanation_view

DATA = f"{HOME}data/"
"""Where the page's data are."""
_POOL_INTERVALS = 2
"""A picture of the KV pool, and the adapters, in so many intervals: they are most of the bytes."""


class Console:
    """Serves the page and its data on the HTTP port of one frontend."""

    name = "console"
    path = HOME

    def __init__(self, parts: FrontendParts, inspector: Inspector) -> None:
        self._parts = parts
        self._inspector = inspector
        self._history = History(parts.counters, parts.engine)
        self._feed = Feed(inspector, parts.engine)

    def routes(self) -> Iterator[Route]:
        """Yields the routes of the page, and those of its data."""
        parts, limits = self._parts, self._parts.limits
        yield from page_routes(parts)
        for name, handle, slot in (
            ("about", self._about, limits.control),
            ("explain", self._explain, limits.control),
            ("live", self._live, limits.stream),
        ):
            yield Route(DATA + name, Endpoint(parts, DATA + name, handle, slot), methods=["GET"])

    def start(self) -> None:
        """Starts taking samples."""
        self._history.start()

    async def stop(self) -> None:
        """Stops that. Idempotent."""
        await self._history.stop()

    async def _about(self, parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
        """GET data/about: what does not change while a page is open."""
        viewer = self._viewer(call, exchange)
        content = {
            "model": parts.model.name,
            "version": __version__,
            "start_time": parts.start_time,
            "adapters": [each.name for each in parts.engine.adapters.visible(call.caller)][:MAX_ADAPTERS],
            "tenant": call.caller.tenant,
            "is_operator": viewer.is_operator,
            "sees_requests": viewer.sees_own,
            "default_sampling": MessageToDict(parts.model.default_sampling, preserving_proto_field_name=True),
            "max_logprobs": parts.config.max_logprobs,
        }
        await exchange.respond(200, content)

    async def _explain(self, parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
        """GET data/explain?id=&tenant=: AdminService.ExplainRequest. Without authentication ids belong to no
        tenant. Raises ServiceError."""
        self._viewer(call, exchange).require_requests()
        query = exchange.query
        if not query.get("id"):
            raise InvalidRequest({"id": "is required"})
        tenant = query.get("tenant", "") if call.caller.tenant is not None else ""
        request = inspection_pb2.ExplainRequestRequest(request_id=query["id"], tenant=tenant)
        explanation = await self._inspector.explain_request(request, call.caller)
        await exchange.respond(200, explanation_view(explanation))

    async def _live(self, parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
        """GET data/live: server-sent events, the history first, then what has changed once an interval. The
        token is looked at again each time: the stream ends when it allows something else, and the page begins
        another one."""
        viewer, history, state = self._viewer(call, exchange), self._history, parts.state
        about = {"length": LENGTH, "interval": INTERVAL_S, "columns": COLUMNS}
        rows = list(history.rows) if viewer.is_operator else []
        await exchange.begin_events()
        await exchange.send_events(event({"kind": "history", "rows": rows, **about}))
        sent = history.num_sampled
        for turn in count():
            caller = parts.authenticator.authenticate(exchange.path, exchange.header_list)
            if caller != call.caller:
                break
            now = history.num_sampled
            await exchange.send_events(await self._now(viewer, sent, now))
            sent = now
            if viewer.is_operator and turn % _POOL_INTERVALS == 0:
                pools = await self._feed.pools(viewer, now)
                await exchange.send_events(event({"kind": "pool", "pools": pools}))
                adapters = await self._feed.adapters(now)
                await exchange.send_events(event({"kind": "adapters", **adapters}))
            if state.closes:  # an endless stream would keep the server from stopping
                break
            await _first_of(history.changed(), state.changed())
        await exchange.end_events(b"")

    async def _now(self, viewer: Viewer, sent: int, interval: int) -> bytes:
        """Returns the event of an interval. sent: number of the last sample that the page has. interval: that
        of the last one that it gets."""
        samples = self._history.since(sent)  # more may be taken while the cores are asked
        name = admin_pb2.ServerState.Name(self._parts.state.state)
        content: Json = {
            "kind": "now",
            "state": name.removeprefix("SERVER_STATE_").lower(),
            "requests": await self._feed.requests(viewer, interval),
        }
        if viewer.is_operator:
            content |= self._feed.engines()
            content["tenants"] = await self._feed.tenants(viewer, interval)
            content["samples"] = samples
        return event(content)

    def _viewer(self, call: Call, exchange: Exchange) -> Viewer:
        peer = "" if exchange.is_forwarded else exchange.peer
        return viewer_of(call.caller, peer, self._parts.authenticator)


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Returns when one of them does, and cancels the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def console_of(parts: FrontendParts, inspector: Inspector) -> Console | None:
    """Returns the console, or None where it is off: without --console on an address that others reach."""
    config = parts.config
    is_on = is_loopback(config.openai_host) if config.console is None else config.console
    return Console(parts, inspector) if is_on else None
