"""Closing a gRPC server's listening socket, and nothing else of it.

grpc can only do all at once: as it closes the socket it says GOAWAY, and whatever call arrives on a
connection in the same fraction of a millisecond ends as CANCELLED, which no client repeats. A balancer that
opens a connection per call loses one now and then. With the socket closed first, its next connection is
refused and goes to another frontend, and those that are there are served.
"""

import os
import socket
import sys


def close_listener(port: int) -> bool:
    """Closes this process's listening sockets on a TCP port. False when there is none.

    The descriptor goes on existing, as that of a socket which nobody uses, so that grpc closes its own
    number later, and not somebody else's.
    """
    if not sys.platform.startswith("linux"):
        return False
    found = [number for number in map(int, os.listdir("/proc/self/fd")) if _listens(number, port)]
    for number in found:
        with socket.socket() as unused:
            os.dup2(unused.fileno(), number, inheritable=False)
    return bool(found)


def _listens(number: int, port: int) -> bool:
    try:
        copy = os.dup(number)
    except OSError:  # closed since it was listed
        return False
    try:
        found = socket.socket(fileno=copy)
    except OSError:  # it is no socket
        os.close(copy)
        return False
    with found:
        if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
            return False
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return bool(listens) and found.getsockname()[1] == port
