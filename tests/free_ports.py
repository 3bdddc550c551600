"""Ports that stay free until a test uses them: neither the system nor another test takes them meanwhile."""

import contextlib
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports that the system gives to whatever asks for any."""


def free_ports(count: int) -> list[int]:
    """Returns ports of 127.0.0.1 below the system's range, which are this process's until it ends.

    A socket with the port in its name, in the kernel's table of names, marks it for other test processes.
    """
    found: list[int] = []
    for port in range(int(RANGE.read_text().split()[0]) - 1, 1024, -1):
        if len(found) == count:
            return found
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as mark:
            mark.bind(f"\0pagewire-test-port-{port}")
            socket.create_server(("127.0.0.1", port)).close()
            found.append(port)
            mark.detach()
    raise AssertionError("no ports are free")
