"""What gRPC's options bound, seen from a client's side of the wire."""

import asyncio

import grpc

from frontend.rpc.grpc_server import server_options
from pagewire.config import FrontendConfig
from tests.hostile.test_frames import Http2, framed

MIB = 1 << 20


async def test_of_a_call_that_is_not_received_the_server_takes_64_kib() -> None:
    """Whatever the bandwidth is. With gRPC's probes of it, it came to be megabytes of each call."""

    async def receive(request: bytes, context: object) -> bytes:
        return b""

    server = grpc.aio.server(options=server_options(FrontendConfig(model="none")))
    method = grpc.unary_unary_rpc_method_handler(receive)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", {"C": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        window = await asyncio.to_thread(_window_after_uploads, f"127.0.0.1:{port}")
    finally:
        await server.stop(0)
    assert window == 65535


def _window_after_uploads(address: str) -> int:
    """Uploads 16 MiB, and returns the bytes that the server then takes of each new call."""
    with Http2(address) as client:
        for _ in range(16):
            stream = client.call(b"", end=False, _path="/a.B/C")
            body, place = framed(bytes(MIB)), 0
            while place < len(body):
                room = min(client.state.local_flow_control_window(stream), 16_384, len(body) - place)
                if room:
                    client.state.send_data(stream, body[place : place + room])
                    client.flush()
                else:
                    assert client.read(stream) == ""
                place += room
            client.state.end_stream(stream)
            client.flush()
            assert client.status(stream) == "0"
        return int(client.state.remote_settings.initial_window_size)
