"""Whether smg serves and answers: by what an HTTP server of a test says in its place."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pagewire_gateways import smg_process as gateway
from pagewire_gateways.smg_process import SmgProbe, serves
from tests.patience import PATIENCE_S

Answer = tuple[int, bytes]
HOST = "127.0.0.1"


class Door:
    """A server, and which paths it was asked for."""

    def __init__(self, answer: Answer | None) -> None:
        """None: connections are closed without an answer."""
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                door.paths.append(self.path)
                if door.answer is None:
                    return
                status, body = door.answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.answer, self.paths = answer, list[str]()
        self._server = HTTPServer((HOST, 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def open_door() -> Iterator[Callable[[Answer | None], Door]]:
    with contextlib.ExitStack() as stack:

        def start(answer: Answer | None) -> Door:
            door = Door(answer)
            stack.callback(door.close)
            return door

        yield start


@pytest.fixture
def closed_port() -> Iterator[int]:
    """One that nothing listens at, and no other process takes."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((200, b'{"data": [{"id": "demo"}]}'), True),
        ((200, b'{"data": []}'), False),
        ((200, b"{}"), False),
        ((503, b'{"data": [{"id": "demo"}]}'), False),
        ((200, b"not JSON"), False),
        ((200, b"[1]"), False),
        (None, False),
    ],
    ids=["a model", "no model", "no data", "unavailable", "no JSON", "no object", "no answer"],
)
def test_it_serves_once_it_knows_a_model(
    answer: Answer | None, expected: bool, open_door: Callable[[Answer | None], Door]
) -> None:
    door = open_door(answer)
    assert serves(HOST, door.port) is expected
    assert door.paths == ["/v1/models"]


def test_a_port_that_nothing_listens_at(closed_port: int) -> None:
    assert not serves(HOST, closed_port)
    assert not SmgProbe(HOST, closed_port)._answers()


@pytest.mark.parametrize(("answer", "expected"), [((200, b""), True), ((503, b""), True), (None, False)])
def test_any_status_is_an_answer(
    answer: Answer | None, expected: bool, open_door: Callable[[Answer | None], Door]
) -> None:
    door = open_door(answer)
    assert SmgProbe(HOST, door.port)._answers() is expected
    assert door.paths == ["/liveness"]


def test_an_answer_is_taken_once(
    open_door: Callable[[Answer | None], Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another one follows, until the probe is closed."""
    monkeypatch.setattr(gateway, "_PAUSE_S", 0.001)
    door = open_door((200, b""))
    probe = SmgProbe(HOST, door.port)
    assert not probe.take_answer()
    probe.start()
    for _ in range(2):
        assert probe._answered.wait(PATIENCE_S)
        assert probe.take_answer()
    probe.close()
    probe._thread.join(PATIENCE_S)
    assert not probe._thread.is_alive()
    probe.take_answer()
    assert not probe.take_answer()
