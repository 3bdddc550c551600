"""Reserving a port for several listeners."""

import socket

import pytest

from pagewire.errors import StartupError
from pagewire.host.addresses import reserve_port


def listener(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    return sock


def test_several_can_listen_on_it():
    with reserve_port("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        with listener(port), listener(port):
            pass


def test_another_service_that_shares_its_port_is_noticed():
    """SO_REUSEPORT alone would let two services of one user mix their clients."""
    with listener(0) as other, pytest.raises(StartupError) as caught:
        reserve_port("127.0.0.1", other.getsockname()[1])
    assert "already in use" in caught.value.why and "--port" in caught.value.todo


def test_a_wrong_host_is_named():
    with pytest.raises(StartupError) as caught:
        reserve_port("no-such-host.invalid", 1)
    assert "no-such-host.invalid" in caught.value.what
