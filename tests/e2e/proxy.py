"""A TCP proxy on loopback that simulates network faults on request.

It runs in a thread of its own, so that tests that block can use it as well as those on an event loop.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self, TypeVar

T = TypeVar("T")

_PIECE = 1 << 14
"""Bytes per read."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close() sends RST and discards unsent data."""


class Proxy:
    """Forwards connections to a target until told otherwise. A context manager.

    `address` is where clients connect. Its methods may be called from any thread.
    """

    def __init__(self, target: str) -> None:
        """target: HOST:PORT."""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._delay = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def num_connections(self) -> int:
        """Number of client connections."""
        return self._call(lambda: len(self._writers) // 2)

    def black_hole(self) -> None:
        """Stops forwarding in both directions: nothing is lost, and connections stay open."""
        self._call(self._open.clear)

    def forward(self) -> None:
        """Resumes forwarding, with everything that was held back."""
        self._call(self._open.set)

    def delay(self, seconds: float) -> None:
        """Delays each piece of up to 16 KiB by this many seconds."""
        self._call(lambda: setattr(self, "_delay", seconds))

    def reset(self) -> None:
        """Resets all connections on both sides."""
        self._call(self._reset)

    def close(self) -> None:
        """Closes all connections and the listener. Idempotent."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    # From here on: the proxy's thread.

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_PIECE)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        try:
            target = await asyncio.open_connection(self._host, self._port, limit=_PIECE)
            ends.append(target[1])
            self._writers.update(ends)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, target[1]))
                group.create_task(self._pump(target[0], writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.difference_update(ends)
            for end in ends:
                end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one direction to its end. Data that is held back waits here and in socket buffers."""
        while piece := await reader.read(_PIECE):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._open.wait()
            writer.write(piece)
            await writer.drain()
        await self._open.wait()
        if writer.can_write_eof():
            writer.write_eof()

    def _reset(self) -> None:
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
