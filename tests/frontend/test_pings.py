"""Connections on which nothing but pings travels, for a long time. In the test the time is short: so is the
shortest time between two pings that the server takes."""

import asyncio
import socket

import h2.config
import h2.connection
import h2.events
import pytest

from frontend.rpc import grpc_server as binding
from tests.frontend.fakes import Output, encode, make_request, run_service
from tests.patience import soon

ALLOWED_S = 0.1
REASON = b"too_many_pings"
METHOD = "/pagewire.v1.GenerationService/Generate"


class Http2:
    """A client that sends a call and pings when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._connection.initiate_connection()
        self.data = b""
        self.answered = asyncio.Event()
        self.is_over = False
        self.is_refused = False

    def call(self, message: bytes) -> None:
        path = [(":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "test")]
        self._connection.send_headers(1, [*path, ("content-type", "application/grpc"), ("te", "trailers")])
        self._connection.send_data(1, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)

    async def ping(self, count: int = 1) -> None:
        """Sends so many in one piece, and waits until one is answered, or the server hangs up."""
        self.answered.clear()
        for number in range(count):
            self._connection.ping(number.to_bytes(8, "big"))
        await self.flush()
        await soon(self.answered.wait())

    def close(self) -> None:
        self._writer.close()

    async def flush(self) -> None:
        self._writer.write(self._connection.data_to_send())
        await self._writer.drain()

    async def read(self) -> None:
        """Until the call or the connection ends."""
        while not self.is_over and (received := await self._reader.read(65536)):
            if REASON in received:  # of a GOAWAY; h2 would not read what comes after it
                self.is_refused = True
                self.answered.set()
                return
            for event in self._connection.receive_data(received):
                if isinstance(event, h2.events.DataReceived):
                    self.data += event.data
                if isinstance(event, h2.events.PingAckReceived):
                    self.answered.set()
                self.is_over |= isinstance(event, h2.events.StreamEnded)
            await self.flush()


async def silent_call(service) -> tuple[Http2, int, asyncio.Task[None]]:
    """A call that has no answer yet: the client, which reads in the task, and the request's handle."""
    client = Http2(*await asyncio.open_connection("127.0.0.1", service.port, family=socket.AF_INET))
    client.call(make_request().SerializeToString())
    await client.flush()
    handle = (await soon(service.engine.requests.get())).handle
    return client, handle, asyncio.create_task(client.read())


@pytest.fixture(autouse=True)
def short_time(monkeypatch):
    monkeypatch.setattr(binding, "PING_INTERVAL_MS", round(ALLOWED_S * 1000))


async def test_a_silent_stream_with_pings_is_not_dropped(checkpoint, model):
    """gRPC's own policy would hang up at the third ping without data."""
    async with run_service(checkpoint, model=model) as service:
        client, handle, reading = await silent_call(service)
        for _ in range(6):
            await client.ping()  # what the server has answered, it has counted: the next comes late enough
            await asyncio.sleep(2 * ALLOWED_S)
        await service.engine.output(handle, Output(encode("late"), 3))
        await soon(reading)
        assert client.is_over and b"late" in client.data and not client.is_refused
        client.close()


async def test_a_flood_of_pings_is(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        client, _, reading = await silent_call(service)
        await client.ping()  # nothing else is to be sent after this: a write would find the connection closed
        await client.ping(50)
        await soon(reading)
        assert client.is_refused
        client.close()
