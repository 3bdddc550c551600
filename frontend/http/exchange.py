"""One request and its answer over ASGI, in the words that endpoints need. Bodies are read within bounds of
bytes and time; see read_object() for the number of values.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

from frontend.call.write_timeout import TimedWriter
from frontend.errors import InvalidRequest, ServiceError
from frontend.http.errors import BodyTooLarge, BodyTooSlow, Disconnected, ForeignHost
from frontend.validation.json_objects import read_object
from pagewire.host.addresses import host_name, is_no_site

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's receive()."""
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[str, str]]
Failure = Callable[[ServiceError], bytes]

TIMEOUT_HEADER = "x-request-timeout"
"""Seconds that the client waits for the whole answer: gRPC's deadline."""
ABORT = "abort"
"""Key of ASGI's scope["state"] with a function that cuts the connection without sending what is buffered."""
_SSE = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("x-accel-buffering", "no"),  # nginx would hold events back
)
_ALWAYS = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))
_OF_PROXIES = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})
_MOST_FIELDS = 16
_LONGEST_S = 366 * 24 * 3600.0
DISCARD_S = 2.0
"""Seconds for which a body that is too large is read and dropped. A socket that is closed with unread bytes
resets the connection, and the client may never see why."""
_LONGEST_NUMBER = 18
"""Digits of a declared length that are worth reading."""
BODY = "body"
"""Name of the body in errors that concern no field of it."""


class Exchange:
    """A request, and a writer for its answer."""

    def __init__(self, scope: Scope, receive: Receive, writer: TimedWriter) -> None:
        self.receive = receive
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.header_list = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        self.headers = dict(self.header_list)
        self.status = 0
        """The answer's status; 0: it has not begun."""
        self.ended = False
        """The whole answer has been written."""
        self.body_size = 0
        """Bytes of the body that was read."""
        self.failure: Failure | None = None
        """Makes the last events of a stream that an error ends; None: the connection is cut."""
        self._scope = scope
        self._writer = writer
        self._has_read = self.method in ("GET", "HEAD")

    @property
    def peer(self) -> str:
        """The address that the connection comes from; "" for a Unix socket."""
        client: tuple[str, int] | None = self._scope.get("client")
        return client[0] if client is not None else ""

    @property
    def is_forwarded(self) -> bool:
        """True when the connection is a proxy's, and `peer` says nothing of the client."""
        return not _OF_PROXIES.isdisjoint(self.headers)

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters. Raises InvalidRequest."""
        text = self._scope["query_string"].decode("latin-1")
        try:
            return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS))
        except ValueError:
            raise InvalidRequest({"query": "cannot be read"}) from None

    @property
    def time_left(self) -> float | None:
        """Seconds that the client gives the request; None: no limit. Raises InvalidRequest."""
        value = self.headers.get(TIMEOUT_HEADER)
        if value is None:
            return None
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds <= _LONGEST_S:
            raise InvalidRequest({TIMEOUT_HEADER: "must be a positive number of seconds"})
        return seconds

    async def read(self, max_bytes: int, timeout: float) -> bytes:
        """Returns the body. timeout: seconds for it to arrive. Raises ServiceError, Disconnected."""
        body = await read_body(self.receive, self.headers, max_bytes, timeout)
        self._has_read, self.body_size = True, len(body)
        return body

    def parse(self, body: bytes) -> dict[str, Any]:
        """Returns the JSON object in a body. Raises InvalidRequest."""
        return parse_object(body, self.headers)

    async def respond(self, status: int, content: Any, headers: Headers = ()) -> None:
        """Sends a whole answer. content: becomes JSON. Raises SlowConsumer."""
        body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        await self.respond_bytes(status, body, "application/json", headers)

    async def respond_bytes(self, status: int, body: bytes, content_type: str, headers: Headers = ()) -> None:
        """Sends a whole answer. Raises SlowConsumer."""
        own = (("content-type", content_type), ("content-length", str(len(body))))
        await self._begin(status, [*own, *headers])
        await self._end(body)

    async def begin_events(self, headers: Headers = (), failure: Failure | None = None) -> None:
        """Begins a stream of server-sent events. Raises SlowConsumer."""
        self.failure = failure
        await self._begin(200, [*_SSE, *headers])

    async def send_events(self, events: bytes) -> None:
        """Sends encoded events; see `event`. Raises SlowConsumer."""
        await self._writer.write({"type": "http.response.body", "body": events, "more_body": True})

    async def end_events(self, last: bytes) -> None:
        """Sends the last events and ends the answer. Raises SlowConsumer."""
        await self._end(last)

    def abort(self) -> None:
        """Cuts the connection."""
        if (abort := self._scope.get("state", {}).get(ABORT)) is not None:
            abort()

    async def _end(self, last: bytes) -> None:
        await self._writer.write({"type": "http.response.body", "body": last})
        self.ended = True

    async def _begin(self, status: int, headers: Headers) -> None:
        closing = () if self._has_read else (("connection", "close"),)  # what has not been read is in the way
        fields = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in (*headers, *_ALWAYS, *closing)
        ]
        await self._writer.write({"type": "http.response.start", "status": status, "headers": fields})
        self.status = status


def event(content: Any, name: str = "") -> bytes:
    """Returns a server-sent event with JSON data. name: of the event, which most streams go without."""
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode()


def check_origin(headers: dict[str, str], allowed_hosts: Collection[str], *, any_host: bool) -> None:
    """Raises ForeignHost for a web page from elsewhere, where a service has no tokens.

    A browser lets any page send requests to any address, and marks them with an Origin header. A page whose
    own name resolves to this machine (DNS rebinding) is of the same origin as far as the browser knows; but
    then the Host header has that name. So without tokens Host must be an IP address, `localhost`, or a name
    that the operator has allowed. With tokens a page would need one, and any Host is served.

    headers: by lower-case name. any_host: callers need a token.
    """
    check_host(headers, allowed_hosts, any_host=any_host)
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise ForeignHost("requests of web pages from elsewhere are refused (Origin)")
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):  # a GET has no Origin
        raise ForeignHost("requests of web pages from elsewhere are refused (Sec-Fetch-Site)")


def check_host(headers: dict[str, str], allowed_hosts: Collection[str], *, any_host: bool) -> None:
    """Raises ForeignHost for an unknown Host. That is enough for a page itself, to which others may link."""
    name = host_name(headers.get("host", ""))
    if not (any_host or name in allowed_hosts or is_no_site(name)):
        raise ForeignHost("Host is not known here; see --openai-allowed-host")


async def read_body(receive: Receive, headers: dict[str, str], max_bytes: int, timeout: float) -> bytes:
    """Returns a request's body. timeout: seconds until it must be complete. Raises BodyTooLarge, BodyTooSlow,
    Disconnected."""
    declared = headers.get("content-length", "0")
    if len(declared) > _LONGEST_NUMBER or int(declared) > max_bytes:  # h11 has checked that it is a number
        if "expect" not in headers:
            await _discard(receive)
        raise BodyTooLarge(max_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout):
            more = True
            while more:
                part, more = await _part(receive)
                size += len(part)
                if size > max_bytes:
                    break
                parts.append(part)
    except TimeoutError:
        raise BodyTooSlow(timeout) from None
    if size > max_bytes:
        await _discard(receive)
        raise BodyTooLarge(max_bytes)
    return b"".join(parts)


def parse_object(body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """Returns the JSON object that a body holds; a byte-order mark before it is ignored. Raises
    InvalidRequest, without quoting the body."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequest({"content-type": "must be application/json"})
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise InvalidRequest({"content-encoding": "must be identity: bodies are not decompressed"})
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest({BODY: "is not UTF-8"}) from None
    return read_object(text, BODY)


async def _part(receive: Receive) -> tuple[bytes, bool]:
    """Returns the next part of the body, and whether more follows. Raises Disconnected."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    return message.get("body", b""), message.get("more_body", False)


async def _discard(receive: Receive) -> None:
    """Reads the rest of a body for a while. Raises Disconnected."""
    try:
        async with asyncio.timeout(DISCARD_S):
            while (await _part(receive))[1]:
                pass
    except TimeoutError:
        pass


@asynccontextmanager
async def until_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancels the block when the client disconnects, which then raises Disconnected. The request's body must
    have been received before."""
    task = asyncio.current_task()
    assert task is not None
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    watching = asyncio.create_task(watch(), name="disconnect")
    try:
        yield
    except asyncio.CancelledError:
        if is_gone and not task.uncancel():
            raise Disconnected from None
        raise
    finally:
        watching.cancel()
