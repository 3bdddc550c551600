"""Closes a gRPC server's listening socket, and nothing else, without losing a connection.

gRPC can only stop as a whole: it closes the socket and sends GOAWAY, and a call that arrives on a connection
in the same fraction of a millisecond ends as CANCELLED, which clients do not retry. And the kernel resets
connections that have not been accepted; a load balancer cannot take back a call that it sent on one.

So a socket filter first drops packets that open connections. Connections already established, or half open,
are still accepted. Then the socket is closed. A client whose packet was dropped retransmits it after a
second, as TCP does, and is refused: a load balancer turns to the next frontend, and among several listeners
on one port the kernel chooses another.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterator

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
