"""A client that asks and never reads: HTTP/2 by hand, with a window of nothing.

The official clients read ahead for their callers, megabytes at a time; this one gives the server no room for
a single byte of an answer, as a hostile or hanging one would.
"""

import socket
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.settings
from google.protobuf.message import Message

_SERVICE = "/pagewire.v1.GenerationService/"
_MOST_STREAMS = 100


class StalledClient:
    """One connection, with calls that are never read. A context manager."""

    def __init__(self, address: str) -> None:
        """address: HOST:PORT."""
        host, _, port = address.rpartition(":")
        self._authority = address
        self._socket = socket.create_connection((host, int(port)))
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        self._trailers: dict[int, dict[str, str]] = {}
        self._flush()

    def call(self, request: Message, method: str = "Generate") -> int:
        """Begins a call with one message; its number."""
        stream = self._h2.get_next_available_stream_id()
        assert stream // 2 < _MOST_STREAMS, "open another connection"
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", _SERVICE + method),
            (":authority", self._authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        body = request.SerializeToString()
        self._h2.send_headers(stream, headers)
        self._h2.send_data(stream, b"\0" + len(body).to_bytes(4, "big") + body, end_stream=True)
        self._flush()
        return stream

    def read_on(self, stream: int, window: int = 1 << 20) -> tuple[bytes, dict[str, str]]:
        """Gives room at last, and reads to the end: the answer's bytes, and the trailers."""
        self._h2.increment_flow_control_window(window, stream)
        self._h2.increment_flow_control_window(window)
        self._flush()
        data = b""
        while True:
            for event in self._events():
                if getattr(event, "stream_id", None) != stream:
                    continue
                if isinstance(event, h2.events.DataReceived):
                    data += event.data
                elif isinstance(event, h2.events.TrailersReceived):
                    self._trailers[stream] = dict(event.headers)
                elif isinstance(event, h2.events.StreamEnded):
                    return data, self._trailers[stream]

    def close(self) -> None:
        """Ends the connection. Idempotent."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _events(self) -> list[h2.events.Event]:
        data = self._socket.recv(1 << 16)
        assert data, "the server has closed the connection"
        events = self._h2.receive_data(data)
        self._flush()
        return events

    def _flush(self) -> None:
        self._socket.sendall(self._h2.data_to_send())
