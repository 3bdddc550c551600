"""How long tests wait for what must happen: on a busy machine it may take ten times as long as alone."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE_S = 200.0
"""The one bound of waits for events. It is less than the timeout of a test, so that the wait itself fails."""

T = TypeVar("T")


async def soon(awaitable: Awaitable[T]) -> T:
    """Returns what is awaited; fails if it does not come within PATIENCE_S."""
    return await asyncio.wait_for(awaitable, PATIENCE_S)


async def until(holds: Callable[[], bool]) -> None:
    """Waits until a condition holds; fails if it does not within PATIENCE_S."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)


def wait_until(holds: Callable[[], bool]) -> None:
    """Waits, in a test without a loop, until a condition holds; fails if it does not within PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.02)
