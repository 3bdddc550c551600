"""Addresses that only this machine reaches, names by which pages of the web reach them, and ports that
several processes listen on."""

import errno
import ipaddress
import re
import socket

from pagewire.errors import StartupError

_HOST = re.compile(r"([\w.-]+|\[[\da-f:.]+\])(?::\d*)?", re.ASCII)


def is_loopback(host: str) -> bool:
    """True if only this machine can connect to a socket that listens on `host`, or connects from it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_address(host: str) -> bool:
    """True for an IP address in numbers, without brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_ipv4(host: str) -> bool:
    """True for an IPv4 address in numbers."""
    try:
        return isinstance(ipaddress.ip_address(host), ipaddress.IPv4Address)
    except ValueError:
        return False


def host_name(header: str) -> str:
    """Returns the name or address in a Host header, "name:port" or "name", in lower case and without
    brackets; "" for anything else."""
    found = _HOST.fullmatch(header.lower())
    return found[1].strip("[]") if found else ""


def is_no_site(name: str) -> bool:
    """True for `localhost` and IP addresses.

    Any other name may be that of a page's site which resolves to this machine (DNS rebinding), and then a
    browser lets the page read the answer.
    """
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def reserve_port(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Returns a socket that holds a port, without listening, for processes that bind it with SO_REUSEPORT.

    port 0 picks a free one; see getsockname(). flag: names it in errors. Raises StartupError. SO_REUSEPORT
    alone would let two services of one user share a port by accident, so the port is first bound without it.
    """
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
        todo = f"stop the process that uses it, or choose another {flag} (0: a free one) or host"
        raise cannot_listen(f"{host}:{port}", error, todo) from None
    return reserved


class PortInUse(StartupError):
    """Another process listens on the port."""


def cannot_listen(where: str, error: OSError, todo: str) -> StartupError:
    """Returns the error of a socket: PortInUse for a port that is taken."""
    taken = error.errno == errno.EADDRINUSE
    why = "the port is already in use: perhaps another service is running" if taken else error.strerror
    return (PortInUse if taken else StartupError)(f"cannot listen on {where}", why or str(error), todo)
