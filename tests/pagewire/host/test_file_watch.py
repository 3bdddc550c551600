"""Objects are refreshed while the server runs, each by itself."""

import asyncio
import threading
from collections.abc import Callable

from pagewire.host.file_watch import FileWatch


class Watched:
    """Calls a function."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.refresh = call


async def test_one_that_hangs_is_logged_and_does_not_stop_the_others(caplog):
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    refreshed: asyncio.Queue[None] = asyncio.Queue()
    watch = FileWatch(
        [Watched(go_on.wait), Watched(lambda: loop.call_soon_threadsafe(refreshed.put_nowait, None))],
        interval=0.001,
        slow=0.01,
    )
    watch.start()
    try:
        while "takes long" not in caplog.text:
            await refreshed.get()
        await refreshed.get()
    finally:
        go_on.set()
        await watch.stop()


async def test_an_error_is_logged_and_checks_go_on(caplog):
    calls: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def fail() -> None:
        loop.call_soon_threadsafe(calls.put_nowait, None)
        raise RuntimeError("broken")

    watch = FileWatch([Watched(fail)], interval=0.001)
    watch.start()
    for _ in range(3):
        await calls.get()
    await watch.stop()
    assert "broken" in caplog.text
