"""A listening socket is closed, and nothing else."""

import asyncio
import os
import socket

import grpc
import pytest

from frontend.rpc import shutdown
from frontend.rpc.shutdown import close_listener
from tests.frontend.fakes import make_request, new_channel, run_service, say, text_of


async def test_calls_on_old_connections_are_served(checkpoint, model):
    async with run_service(checkpoint, model=model, script=say([10])) as service:
        before = await service.generation.GenerateUnary(make_request())
        assert await close_listener(service.port)
        assert await service.generation.GenerateUnary(make_request()) is not None
        assert text_of([before])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", service.port)
        async with new_channel(service.port) as late:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await late.unary_unary("/any/method")(b"")
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert not await close_listener(service.port)


async def test_other_sockets_are_left_alone():
    with socket.create_server(("127.0.0.1", 0)) as mine, socket.create_server(("127.0.0.1", 0)) as other:
        port = mine.getsockname()[1]
        with socket.create_connection(mine.getsockname()) as client, mine.accept()[0] as accepted:
            assert await close_listener(port)
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.create_connection(other.getsockname()), other.accept()[0]:
            pass


async def test_no_connection_is_reset(monkeypatch: pytest.MonkeyPatch):
    """Connections in the queue are accepted; later ones are refused, and may go elsewhere."""
    monkeypatch.setattr(shutdown, "_LONGEST_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(server.getsockname()) as early:
            early.sendall(b"x")
            closing = asyncio.create_task(close_listener(port))
            await asyncio.sleep(0)  # the filter is there, and the queue is not empty
            late = asyncio.create_task(asyncio.open_connection("127.0.0.1", port))
            await asyncio.wait({late}, timeout=0.1)
            assert not late.done() and not closing.done()
            with server.accept()[0] as accepted:
                assert accepted.recv(1) == b"x"
                assert await closing
                with pytest.raises(ConnectionRefusedError):
                    await late


async def test_a_port_without_a_listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert not await close_listener(port)


async def test_a_listener_that_closes_meanwhile(monkeypatch: pytest.MonkeyPatch):
    """Its descriptor's number may belong to another file by then: that one is left alone."""
    server = socket.create_server(("127.0.0.1", 0))
    port, number = server.getsockname()[1], server.fileno()
    reused: list[socket.socket] = []
    names: list[object] = []

    def close_and_reuse(_: int) -> int:
        if not reused:
            other = socket.create_server(("127.0.0.1", 0))
            names.append(other.getsockname())
            os.dup2(other.fileno(), server.detach(), inheritable=False)
            other.close()
            reused.append(socket.socket(fileno=number))
        return 0

    monkeypatch.setattr(shutdown, "_num_unaccepted", close_and_reuse)
    assert await close_listener(port)
    with reused[0] as other:
        assert other.fileno() == number
        assert other.getsockname() == names[0], "it is another socket now"
