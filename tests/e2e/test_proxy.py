"""The proxy that other tests rely on does what it says."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.e2e.proxy import Proxy
from tests.e2e.services import PATIENCE_S, wait_until


@pytest.fixture
def echo() -> Iterator[str]:
    """HOST:PORT of a server that says whatever it hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with closing(connection):
            try:
                while piece := connection.recv(1024):
                    connection.sendall(piece)
            except ConnectionResetError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def test_it_forwards_holds_back_and_goes_on(echo: str) -> None:
    """Nothing is lost in a black hole that ends."""
    with Proxy(echo) as proxy, closing(connect(proxy)) as client:
        client.sendall(b"one")
        assert client.recv(16) == b"one"
        proxy.black_hole()
        client.sendall(b"two")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(16)
        client.settimeout(PATIENCE_S)
        proxy.forward()
        assert client.recv(16) == b"two"
        assert proxy.num_connections == 1
    with pytest.raises(OSError):
        connect(proxy)


def test_it_resets(echo: str) -> None:
    """Both sides see their connections break."""
    with Proxy(echo) as proxy, closing(connect(proxy)) as client:
        client.sendall(b"one")
        assert client.recv(16) == b"one"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(16)
        wait_until(lambda: proxy.num_connections == 0)


def test_the_end_of_one_side_travels(echo: str) -> None:
    """A client that closes its side gets the rest."""
    with Proxy(echo) as proxy, closing(connect(proxy)) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(64) == b"last words"
        assert client.recv(64) == b""
