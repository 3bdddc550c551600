"""How a frontend stops accepting requests, without refusing one that could be served: for a while, on
AdminService.Drain, or for good, on a signal.

Both begin alike: health checks fail at once, and for `delay` seconds requests are still served, so that load
balancers notice before a client gets an error.

A shutdown then closes the listening socket, and nothing else, without losing a connection. gRPC can only stop
as a whole: it closes the socket and sends GOAWAY, and a call that arrives on a connection in the same
fraction of a millisecond ends as CANCELLED, which clients do not retry. And the kernel resets connections
that have not been accepted; a load balancer cannot take back a call that it sent on one. So a socket filter
first drops packets that open connections. Connections already established, or half open, are still accepted.
Then the socket is closed. A client whose packet was dropped retransmits it after a second, as TCP does, and
is refused: a load balancer turns to the next frontend, and among several listeners on one port the kernel
chooses another.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from frontend.call.serving_state import ServingState
from frontend.errors import Draining, ShuttingDown
from frontend.streams.request_registry import RequestRegistry

log = logging.getLogger(__name__)

SETTLE_S = 0.2
"""Seconds for calls on connections that were made just before the listening socket was closed."""
FLUSH_S = 0.3
"""Seconds for the final messages of streams that outlast the grace period."""
Timer = asyncio.TimerHandle
CallLater = Callable[[float, Callable[[], None]], Timer]
_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER, which the socket module lacks."""
_DROP_SYN = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load the byte with the flags of TCP's header
        (0x54, 0, 0, 0x12),  # keep SYN and ACK
        (0x15, 0, 1, 0x02),  # SYN alone:
        (0x06, 0, 0, 0),  # drop
        (0x06, 0, 0, 0xFFFFFFFF),  # anything else: take all of it
    )
)
"""Classic BPF program. Accepted connections inherit it, without effect."""
_UNACCEPTED = struct.Struct("=24xI")
"""Linux' tcp_info.tcpi_unacked, which is the queue's length on a listening socket."""
_PAUSE_S = 0.02
"""Seconds between two checks; also enough for the last step of a handshake that has begun."""
_LONGEST_S = 5.0


class Drain:
    """A drain on request of an operator, which can be undone."""

    def __init__(
        self,
        state: ServingState,
        requests: RequestRegistry,
        delay: float,
        call_later: CallLater | None = None,
    ) -> None:
        """delay: seconds between the failing health check and the first refusal. call_later: the event
        loop's."""
        self._state = state
        self._requests = requests
        self._delay = delay
        self._call_later = call_later
        self._is_over = False
        self._refusal: Timer | None = None
        self._deadline: Timer | None = None

    def begin(self, timeout: float | None) -> int:
        """Starts a drain, or changes the timeout of a running one. timeout: seconds until requests in flight
        end with Draining; None: never. Returns the number of requests in flight. Raises ShuttingDown."""
        self._require_running()
        if self._refusal is None:
            log.info("draining")
            self._state.drain()
            self._refusal = self._after(self._delay, self._state.refuse)
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if timeout is None else self._after(timeout, self._time_out)
        return self._requests.num_requests

    def resume(self) -> None:
        """Serves again. Raises ShuttingDown."""
        self._require_running()
        if self._refusal is not None:
            log.info("serving again")
        self._forget()
        self._state.resume()

    def close(self) -> None:
        """Disables begin() and resume(), because the process shuts down."""
        self._is_over = True
        self._forget()

    def _require_running(self) -> None:
        if self._is_over:
            raise ShuttingDown

    def _forget(self) -> None:
        """Cancels both timers."""
        for timer in (self._refusal, self._deadline):
            if timer is not None:
                timer.cancel()
        self._refusal = self._deadline = None

    def _after(self, seconds: float, action: Callable[[], None]) -> Timer:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        return call_later(seconds, action)

    def _time_out(self) -> None:
        self._state.refuse()  # also where the timeout is shorter than the delay
        self._requests.end_all(Draining())


class Stoppable(Protocol):
    """A server of one port."""

    async def stop(self, grace: float) -> None:
        """Accepts no more calls; running ones have `grace` seconds. May be called again with a
        shorter grace."""


class Shutdown:
    """run() once; hurry() at any time."""

    def __init__(
        self, state: ServingState, drain: Drain, requests: RequestRegistry, *servers: Stoppable
    ) -> None:
        self._state = state
        self._drain = drain
        self._requests = requests
        self._servers = servers
        self._hurry = asyncio.Event()

    async def run(self, ports: Sequence[int], delay: float, grace: float) -> None:
        """Fails health checks; serves everything for `delay` seconds; closes the listening sockets; tells
        clients to leave (GOAWAY); gives streams `grace` seconds to end; ends the rest with UNAVAILABLE, so
        that their clients continue elsewhere."""
        self._drain.close()
        self._state.drain()
        await self._pause(delay)
        await asyncio.gather(*map(close_listener, ports))
        if delay:
            await self._pause(SETTLE_S)
        self._state.close()
        stopping = asyncio.create_task(self._stop(grace + 2 * FLUSH_S))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({stopping, hurry}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not stopping.done():
            self._requests.end_all(Draining())
            await asyncio.wait({stopping}, timeout=FLUSH_S)
            await self._stop(0)
        await stopping

    def hurry(self) -> None:
        """Skips all remaining waits."""
        self._hurry.set()

    async def _stop(self, grace: float) -> None:
        await asyncio.gather(*(server.stop(grace) for server in self._servers))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), seconds)


async def close_listener(port: int) -> bool:
    """Closes this process's listening sockets on a TCP port. Returns False when there is none.

    The descriptor is replaced by an unused socket, so that gRPC later closes its own number and not a reused
    one.
    """
    if not sys.platform.startswith("linux"):
        return False
    found = [number for number in map(int, os.listdir("/proc/self/fd")) if _listens(number, port)]
    for number in found:
        _take_no_more(number)
    deadline = asyncio.get_running_loop().time() + _LONGEST_S
    is_empty = not found
    while not is_empty and asyncio.get_running_loop().time() < deadline:
        is_empty = not any(map(_num_unaccepted, found))
        await asyncio.sleep(_PAUSE_S)
    for number in found:
        if _listens(number, port):  # not closed meanwhile, its number perhaps reused
            with socket.socket() as unused:
                os.dup2(unused.fileno(), number, inheritable=False)
    return bool(found)


def _listens(number: int, port: int) -> bool:
    try:
        with _borrowed(number) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
                return False
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            return bool(listens) and found.getsockname()[1] == port
    except OSError:  # closed since it was listed, or not a socket
        return False


def _take_no_more(number: int) -> None:
    program = ctypes.create_string_buffer(_DROP_SYN, len(_DROP_SYN))
    description = struct.pack("@HP", len(_DROP_SYN) // 8, ctypes.addressof(program))
    with (
        _borrowed(number) as listener,
        contextlib.suppress(OSError),
    ):  # without the filter, some connections are reset
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, description)


def _num_unaccepted(number: int) -> int:
    with _borrowed(number) as listener:
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACCEPTED.size)
        return int(_UNACCEPTED.unpack(info)[0])


@contextlib.contextmanager
def _borrowed(number: int) -> Iterator[socket.socket]:
    """Yields a descriptor as a socket. Raises OSError when it is none."""
    copy = os.dup(number)
    try:
        found = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with found:
        yield found
