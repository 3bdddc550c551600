"""A path that is no UTF-8 ends the task in which grpc.aio takes calls: the frontend goes on all the same."""

import asyncio

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest

from frontend.rpc import grpc_server
from frontend.rpc.grpc_server import GrpcServer
from pagewire.errors import StartupError
from pagewire.v1 import model_pb2
from tests.frontend.fakes import Output, encode, make_request, run_service, text_of
from tests.patience import PATIENCE_S, soon


async def send_bad_path(port: int) -> None:
    """A call that no gRPC library would make, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    config = h2.config.H2Configuration(header_encoding=None, validate_outbound_headers=False)
    connection = h2.connection.H2Connection(config)
    connection.initiate_connection()
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/\xff/\xfe")]
    headers += [(b"te", b"trailers"), (b"content-type", b"application/grpc")]
    connection.send_headers(1, headers, end_stream=True)
    writer.write(connection.data_to_send())
    try:
        while data := await reader.read(65536):
            events = connection.receive_data(data)
            over = h2.events.ConnectionTerminated | h2.events.StreamEnded
            if any(isinstance(event, over) for event in events):
                break
    except h2.exceptions.ProtocolError:  # a frame after the farewell
        pass
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("reuse_port", [False, True])
async def test_a_path_cannot_stop_a_frontend(checkpoint, model, reuse_port, caplog):
    async with run_service(checkpoint, model=model, reuse_port=reuse_port) as service:
        call = service.generation.Generate(make_request())
        handle = (await soon(service.engine.requests.get())).handle
        for _ in range(3):
            await soon(send_bad_path(service.port))
            async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}") as channel:
                list_models = channel.unary_unary(
                    "/pagewire.v1.ModelService/ListModels",
                    response_deserializer=model_pb2.ListModelsResponse.FromString,
                )
                while True:
                    try:
                        assert (await list_models(b"", wait_for_ready=True, timeout=PATIENCE_S)).models
                        break
                    except grpc.aio.AioRpcError as error:  # it still met the old server, which was closing
                        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        await service.engine.output(handle, Output(encode("still here"), 3))
        assert text_of([message async for message in call]) == "still here"
        replaced = service.frontend._server.num_replaced
    assert sum("broke" in message for message in caplog.messages) == replaced.bit_length()


async def test_streams_of_a_broken_server_end_with_the_frontend(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request())
        await soon(service.engine.requests.get())
        await soon(send_bad_path(service.port))
        await service.frontend.stop(0.01)
        assert await call.code() == grpc.StatusCode.UNAVAILABLE


class BrokenServer:
    """A grpc.aio server that breaks at once."""

    async def start(self) -> None:
        pass

    async def stop(self, grace: float) -> None:
        pass

    async def wait_for_termination(self, timeout: float) -> bool:
        await asyncio.sleep(0)
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no UTF-8")


async def test_a_frontend_ends_when_another_process_takes_its_port(monkeypatch):
    """It would live without taking calls."""
    monkeypatch.setattr(grpc_server, "BIND_PATIENCE_S", 0.0)
    ports = iter([4711])

    def bind(server, port: int) -> int:
        found = next(ports, None)
        if found is None:
            raise StartupError("cannot listen")
        return found

    server = GrpcServer(BrokenServer, bind)
    assert server.open(0) == 4711
    await server.start()
    with pytest.raises(StartupError, match="cannot listen"):
        await soon(server.wait_broken())
    await server.stop(0)
