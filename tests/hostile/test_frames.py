"""Bytes and frames that no gRPC client would send (R19, R28)."""

import gzip
import random
import socket
import struct

import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest

from pagewire.local_service import Service
from pagewire.v1 import generation_pb2
from tests.hostile.oracle import unharmed

METHOD = "/pagewire.v1.GenerationService/GenerateUnary"
REQUEST = generation_pb2.GenerateRequest(
    prompt={"text": "hi"}, stopping={"max_tokens": 3}
).SerializeToString()
PATIENCE_S = 30.0


def framed(data: bytes, flag: int = 0, length: int | None = None) -> bytes:
    """gRPC's five bytes before a message."""
    return struct.pack(">BI", flag, len(data) if length is None else length) + data


def headers(**changes: str) -> list[tuple[str, str]]:
    """Of a call; changes: name -> value, underscores for dashes, a leading `_` for a colon."""
    found = {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": "here",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    found |= {
        (":" + name[1:] if name[0] == "_" else name).replace("_", "-"): value
        for name, value in changes.items()
    }
    return sorted(found.items(), key=lambda pair: not pair[0].startswith(":"))


class Http2:
    """A connection, frame by frame."""

    def __init__(self, address: str, source: str = "") -> None:
        """source: the address that the connection comes from; by default the system's choice."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S, (source, 0) if source else None)
        config = h2.config.H2Configuration(
            client_side=True,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            header_encoding="utf-8",
        )
        self.state = h2.connection.H2Connection(config)
        self.state.initiate_connection()
        self.flush()

    def __enter__(self) -> "Http2":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.state.data_to_send())

    def call(self, body: bytes, end: bool = True, **changes: str) -> int:
        """Sends a call; its stream."""
        stream = self.state.get_next_available_stream_id()
        self.state.send_headers(stream, headers(**changes))
        for start in range(0, len(body), 16_384):
            self.state.send_data(stream, body[start : start + 16_384])
        if end:
            self.state.end_stream(stream)
        self.flush()
        return stream

    def status(self, stream: int) -> str | None:
        """grpc-status of a call; "reset" when the stream was, None when the connection was closed."""
        while True:
            if (status := self.read(stream)) != "":
                return status

    def read(self, stream: int) -> str | None:
        """Takes in what has come; as status(), but "" when that says nothing of it yet."""
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            return None
        if not data:
            return None
        for event in self.state.receive_data(data):
            if getattr(event, "stream_id", None) == stream:
                if isinstance(event, h2.events.StreamReset):
                    return "reset"
                for name, value in getattr(event, "headers", None) or ():
                    if name == "grpc-status":
                        return str(value)
            if isinstance(event, h2.events.ConnectionTerminated):
                return None
        self.flush()
        return ""


FAULTS = ("2", "13")
"""UNKNOWN and INTERNAL."""
BY_GRPC_ITSELF = ("grpc-timeout: -5S", "grpc-encoding: zstd")
"""What gRPC's core answers as INTERNAL before any code of ours sees it."""


@pytest.mark.parametrize(
    "body",
    [
        framed(REQUEST, length=5),
        framed(REQUEST, length=1 << 31),
        framed(REQUEST, length=(1 << 32) - 1),
        framed(REQUEST, flag=255),
        framed(REQUEST, flag=1),
        framed(REQUEST) * 2,
        framed(b""),
        framed(b"\xff" * 100),
    ],
    ids=[
        "too short a length",
        "2 GiB",
        "4 GiB",
        "an odd flag",
        "compressed, it says",
        "two messages",
        "an empty one",
        "garbage",
    ],
)
def test_frames_that_lie(victim: Service, body: bytes) -> None:
    with unharmed(victim), Http2(victim.address) as connection:
        status = connection.status(connection.call(body))
        # gRPC's core answers for what it cannot take apart; it never gets to us.
        assert status != "0" or body in (framed(REQUEST, length=5), framed(REQUEST) * 2)
        good = connection.call(framed(REQUEST))
        assert connection.status(good) in ("0", None)


def test_calls_that_end_before_their_message(victim: Service) -> None:
    """grpc.aio never answers these, as it takes them for cancelled; they disturb no other call, and end with
    their connection."""
    with unharmed(victim), Http2(victim.address) as connection:
        for body in (b"", b"\0", framed(REQUEST)[:-1], framed(REQUEST, length=1 << 20)):
            connection.call(body)
        assert connection.status(connection.call(framed(REQUEST))) == "0"


def test_a_message_that_grows_when_it_is_unpacked(victim: Service) -> None:
    """gzip makes a thousandth of zeros: refused before it is whole, at --max-request-bytes."""
    body = framed(gzip.compress(bytes(256 << 20), 9), flag=1)
    with unharmed(victim), Http2(victim.address) as connection:
        stream = connection.state.get_next_available_stream_id()
        connection.state.send_headers(stream, headers(grpc_encoding="gzip"))
        status: str | None = ""
        while status == "":
            window = min(connection.state.local_flow_control_window(stream), 16_384, len(body))
            if window:
                part, body = body[:window], body[window:]
                connection.state.send_data(stream, part, end_stream=not body)
                connection.flush()
            else:
                status = connection.read(stream)
        assert status in ("8", "reset", None)


@pytest.mark.parametrize(
    "changes",
    [
        {"_path": "/nowhere/Nothing"},
        {"_path": "x" * 7000},
        {"_path": "/pagewire.v1.GenerationService/"},
        {"content_type": "text/html"},
        {"_method": "GET"},
        {"grpc_timeout": "999999999999999999999S"},
        {"grpc_timeout": "0n"},
        {"grpc_timeout": "-5S"},
        {"grpc_encoding": "zstd"},
        {"authorization": "Bearer " + "x" * 4000},
        {"traceparent": "00-" + "f" * 900},
        {"x_request_id": "\u00ff" * 50},
    ],
    ids=lambda changes: "-".join(changes).strip("_"),
)
def test_headers_that_make_no_sense(victim: Service, changes: dict[str, str]) -> None:
    with unharmed(victim), Http2(victim.address) as connection:
        status = connection.status(connection.call(framed(REQUEST), **changes))
        sent = [f"{name.replace('_', '-')}: {value}" for name, value in changes.items()]
        assert status not in FAULTS or sent[0] in BY_GRPC_ITSELF


def test_bytes_that_are_no_http(victim: Service) -> None:
    draw = random.Random(1)
    host, _, port = victim.address.rpartition(":")
    first = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"",
        b"\x16\x03\x01\x02\x00\x01",
    ]
    with unharmed(victim):
        for number in range(300):
            with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
                connection.sendall(first[number % 4] + draw.randbytes(draw.randrange(200)))


def test_calls_that_are_reset_at_once(victim: Service) -> None:
    """Rapid reset: 3,000 calls of which none is wanted."""
    with unharmed(victim):
        for _ in range(30):
            with Http2(victim.address) as connection:
                for _ in range(100):
                    stream = connection.call(framed(REQUEST), end=False)
                    connection.state.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
                connection.flush()


def test_clients_that_come_and_go(victim: Service) -> None:
    """500 connections at once, half of which never say anything."""
    host, _, port = victim.address.rpartition(":")
    with unharmed(victim):
        open_ones = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(250)]
        talking = [Http2(victim.address) for _ in range(250)]
        for connection in talking:
            connection.call(framed(REQUEST), end=False)
        for each in open_ones:
            each.close()
        for connection in talking:
            connection.socket.close()
