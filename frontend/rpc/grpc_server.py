"""The gRPC server, and its replacement when it breaks.

grpc.aio decodes every call's path as UTF-8 in the one task that accepts calls. A call with another path,
which any client can send before authentication, ends that task: the server closes its sockets, finishes its
running calls, and accepts nothing more, in a process that lives on. So this module waits for the end of that
task, and a new server opens the same port at once. Streams of the old one continue there; connections are
made anew. (Seen in grpcio 1.85.1; harmless where it is fixed. Where the task has another name the server is
polled instead: 20 checks per second took half a percent of a core.)
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc

from pagewire.errors import StartupError

log = logging.getLogger(__name__)

LOOK_S = 0.05
"""Seconds between two checks when there is no task to wait for: as long are connections refused."""
_TAKES_CALLS = "AioServer._server_main_loop"
"""Name of the coroutine that accepts calls."""
BIND_PATIENCE_S = 10.0
"""Seconds that the old server may take to close its socket; after that the port belongs to
another process."""
FOREVER_S = 7 * 24 * 3600.0
"""Seconds that streams of a broken server may take."""


class GrpcServer:
    """One port, served by a grpc.aio server, and by another one when that breaks."""

    def __init__(
        self, make: Callable[[], grpc.aio.Server], bind: Callable[[grpc.aio.Server, int], int]
    ) -> None:
        """make: creates a server with all methods. bind: opens a port, or a free one when it is 0; returns
        its number; raises StartupError."""
        self.num_replaced = 0
        self._make = make
        self._bind = bind
        self._port = 0
        self._server = make()
        self._old: dict[grpc.aio.Server, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._taking_calls: set[asyncio.Task[Any]] = set()  # the task that accepts calls, when it was found

    def open(self, port: int) -> int:
        """Opens the port, or a free one when it is 0; returns its number. Raises StartupError."""
        self._port = self._bind(self._server, port)
        return self._port

    async def start(self) -> None:
        """Accepts calls."""
        await self._start_server()
        self._watch = asyncio.create_task(self._look(), name="grpc server")

    async def stop(self, grace: float) -> None:
        """Accepts no more calls; running ones have `grace` seconds. May be called again with a
        shorter grace."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            _ = self._watch.cancelled() or self._watch.exception()  # wait_broken() has raised it
        await asyncio.gather(*(server.stop(grace) for server in (self._server, *self._old)))
        await asyncio.gather(*self._old.values())

    async def wait_broken(self) -> None:
        """Never returns; raises when no server could replace a broken one."""
        assert self._watch is not None
        await asyncio.shield(self._watch)

    async def _look(self) -> None:
        while True:
            if pending := {task for task in self._taking_calls if not task.done()}:
                await asyncio.wait(pending)
            else:
                await asyncio.sleep(LOOK_S)
            error = await _failure_of(self._server)
            if error is not None:
                self.num_replaced += 1
                if self.num_replaced.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
                    kind, count = type(error).__name__, self.num_replaced
                    log.error("the gRPC server broke (%s) and was replaced (%d so far)", kind, count)
                await self._replace()

    async def _replace(self) -> None:
        """Replaces a server that has closed its socket, or is about to."""
        old = self._server
        self._old[old] = asyncio.create_task(self._retire(old), name="old grpc server")
        self._server = self._make()
        ends = time.monotonic() + BIND_PATIENCE_S
        while True:
            try:
                self._bind(self._server, self._port)
                break
            except StartupError:  # the old server has not closed its socket yet
                if time.monotonic() > ends:
                    raise
                await asyncio.sleep(LOOK_S)
        await self._start_server()

    async def _start_server(self) -> None:
        before = asyncio.all_tasks()
        await self._server.start()
        self._taking_calls = {
            task
            for task in asyncio.all_tasks() - before
            if getattr(task.get_coro(), "__qualname__", "") == _TAKES_CALLS
        }

    async def _retire(self, old: grpc.aio.Server) -> None:
        """Waits for the last stream of a broken server."""
        await old.stop(FOREVER_S)
        self._old.pop(old, None)


async def _failure_of(server: grpc.aio.Server) -> Exception | None:
    """Returns the error that broke the server, if that happens within LOOK_S."""
    try:
        await server.wait_for_termination(LOOK_S)
    except Exception as error:
        return error
    return None
