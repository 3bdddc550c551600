"""Reserves a TCP port on which several processes listen."""

import errno
import socket

from pagewire.errors import StartupError


def reserve_port(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Returns a socket that holds a port, without listening, for processes that bind it with SO_REUSEPORT.

    port 0 picks a free one; see getsockname(). flag: names it in errors. Raises StartupError. SO_REUSEPORT
    alone would let two services of one user share a port by accident, so the port is first bound without it.
    """
    what = f"cannot listen on {host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
        reserved = socket.socket(family, kind, protocol)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                what,
                "the port is already in use",
                f"stop the process that uses it, or choose another {flag} (0: a free one)",
            ) from None
        raise StartupError(what, error.strerror or str(error), f"choose another host or {flag}") from None
    return reserved
