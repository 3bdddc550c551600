"""The gRPC server, and another one in its place when it breaks.

grpc.aio decodes the path of every call as UTF-8 in the one task that takes calls. A call whose path is no
UTF-8, which anybody can send and no gate sees, ends that task: the server closes its sockets, finishes what
runs, and takes nothing more, in a process that lives. So we wait for the end of that task, and a new server
opens the same port at once. Streams of the old one go on there; connections are made anew.
(grpcio 1.85.1. Where it is mended, nothing here ever happens. Where the task has another name, we look at the
server again and again: twenty looks in a second were half a percent of a core.)
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
"""Between two looks, where there is nothing to wait for. So long are connections refused."""
_TAKES_CALLS = "AioServer._server_main_loop"
"""What the task runs that takes calls."""
BIND_PATIENCE_S = 10.0
"""What the old server may take to close its socket; then somebody else has the port."""
FOREVER_S = 7 * 24 * 3600.0
"""What streams of a broken server may take."""


class GrpcServer:
    """One port, served by one grpc.aio server after another; mostly by the first."""

    def __init__(
        self, make: Callable[[], grpc.aio.Server], bind: Callable[[grpc.aio.Server, int], int]
    ) -> None:
        """make: a server with all its methods. bind: opens a port, or any where it is 0; returns its number;
        raises StartupError."""
        self.num_replaced = 0
        self._make = make
        self._bind = bind
        self._port = 0
        self._server = make()
        self._old: dict[grpc.aio.Server, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._taking_calls: set[asyncio.Task[Any]] = set()  # the server's task, if we know it

    def open(self, port: int) -> int:
        """Opens the port, or any where it is 0; returns its number. Raises StartupError."""
        self._port = self._bind(self._server, port)
        return self._port

    async def start(self) -> None:
        """Takes calls."""
        await self._start_server()
        self._watch = asyncio.create_task(self._look(), name="grpc server")

    async def stop(self, grace: float) -> None:
        """Takes no calls any more; those that run have `grace` seconds. May be called again, to hurry."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            _ = self._watch.cancelled() or self._watch.exception()  # wait_broken() has told of it
        await asyncio.gather(*(server.stop(grace) for server in (self._server, *self._old)))
        await asyncio.gather(*self._old.values())

    async def wait_broken(self) -> None:
        """Returns only by raising: no server could take the place of one that broke."""
        assert self._watch is not None
        await asyncio.shield(self._watch)

    async def _look(self) -> None:
        while True:
            if pending := {task for task in self._taking_calls if not task.done()}:
                await asyncio.wait(pending)
            else:
                await asyncio.sleep(LOOK_S)
            error = await _death_of(self._server)
            if error is not None:
                self.num_replaced += 1
                if self.num_replaced.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
                    kind, count = type(error).__name__, self.num_replaced
                    log.error("gRPC's server broke by %s, another one takes over (%d so far)", kind, count)
                await self._replace()

    async def _replace(self) -> None:
        """The old one has closed its socket, or is about to."""
        old = self._server
        self._old[old] = asyncio.create_task(self._bury(old), name="old grpc server")
        self._server = self._make()
        ends = time.monotonic() + BIND_PATIENCE_S
        while True:
            try:
                self._bind(self._server, self._port)
                break
            except StartupError:  # it is about to
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

    async def _bury(self, old: grpc.aio.Server) -> None:
        """Waits for its last stream."""
        await old.stop(FOREVER_S)
        self._old.pop(old, None)


async def _death_of(server: grpc.aio.Server) -> Exception | None:
    """What it broke by, if it did so within LOOK_S."""
    try:
        await server.wait_for_termination(LOOK_S)
    except Exception as error:
        return error
    return None
