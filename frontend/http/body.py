"""Reads JSON bodies within bounds: bytes, time; see read_object() for the number of values."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from frontend.errors import InvalidRequest
from frontend.http.errors import BodyTooLarge, BodyTooSlow, Disconnected
from frontend.validation.json_objects import read_object

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's receive()."""

DISCARD_S = 2.0
"""Seconds for which a body that is too large is read and dropped. A socket that is closed with unread bytes
resets the connection, and the client may never see why."""
_LONGEST_NUMBER = 18
"""Digits of a declared length that are worth reading."""
BODY = "body"
"""Name of the body in errors that concern no field of it."""


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


def parse_object(body: bytes, content_type: str) -> dict[str, Any]:
    """Returns the JSON object that a body holds. Raises InvalidRequest, without quoting the body."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequest({"content-type": "must be application/json"})
    try:
        text = body.decode("utf-8")
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
