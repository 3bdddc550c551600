"""Ends the work on a request whose client has gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from frontend.http.body import Receive
from frontend.http.errors import Disconnected


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
