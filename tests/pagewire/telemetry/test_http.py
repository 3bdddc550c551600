"""The HTTP server with well-behaved and hostile clients."""

import asyncio
import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from pagewire.config import EngineConfig
from pagewire.errors import StartupError
from pagewire.host.tls import read_certificates
from pagewire.telemetry import http
from pagewire.telemetry.http import HttpThread, listen, listen_unix, parse_head
from pagewire.telemetry.pages import Page, text_page
from pagewire.telemetry.watch import Watch
from tests.patience import PATIENCE_S


async def answer(path: str, accept: str) -> Page:
    return text_page(200 if path == "/x" else 404, f"{path} for {accept}")


@pytest.fixture
def port() -> Iterator[int]:
    listener = listen("127.0.0.1", 0)
    thread = HttpThread(answer, listener)
    thread.start()
    yield int(listener.getsockname()[1])
    thread.close()
    assert "http" not in [each.name for each in threading.enumerate()]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def read(connection: socket.socket) -> bytes:
    """Reads to the end."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def ask(port: int, request: bytes) -> bytes:
    with connect(port) as connection:
        connection.sendall(request)
        return read(connection)


def test_a_page_has_its_length_and_the_connection_ends(port: int):
    head, body = ask(port, b"GET /x?a=b HTTP/1.1\r\nHost: h\r\nAccept:  text/y \r\n\r\n").split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and body == b"/x for text/y\n"
    assert b"Content-Length: 14\r\n" in head and head.endswith(b"Connection: close")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, b"200") for name in (b"127.0.0.1:9464", b"[::1]:9464", b"LOCALHOST")),
        *((name, b"403") for name in (b"evil.example:9464", b"", b"127.0.0.1.evil.example", b"localhost.")),
    ],
)
def test_a_page_whose_name_leads_to_this_machine_reads_nothing(host: bytes, status: bytes):
    """DNS rebinding: to the browser, page and answer are of one origin."""
    watch = Watch(EngineConfig(model="m"), "test")
    watch.open(0)
    assert watch.address is not None
    port = int(watch.address.rpartition(":")[2])
    assert ask(port, b"GET /healthz HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")[9:12] == status
    assert ask(port, b"GET /healthz HTTP/1.0\r\n\r\n")[9:12] == b"200", "a probe without a Host"
    watch.close()


def test_head_has_no_body(port: int):
    assert ask(port, b"HEAD /x HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")[2] == b""


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /y HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405 Method Not Allowed"),
        (b"get /x HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET x HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET /x HTTP/2.0\r\n\r\n", b"400 Bad Request"),
        (b"GET /x\r\n\r\n", b"400 Bad Request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400 Bad Request"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET /x HTTP/1.1\r\nno header\r\n\r\n", b"400 Bad Request"),
        (b"GET /x HTTP/1.1\r\n: empty\r\n\r\n", b"400 Bad Request"),
        (b"GET /x HTTP/1.1\r\n folded: y\r\n\r\n", b"400 Bad Request"),
        (b"GET /" + 9000 * b"x" + b" HTTP/1.1\r\n\r\n", b"431 Request Header Fields Too Large"),
        (b"GET /x HTTP/1.1\r\n" + 3000 * b"a: b\r\n", b"431 Request Header Fields Too Large"),
    ],
)
def test_what_is_no_request_for_a_page_is_told_so(port: int, request_: bytes, status: bytes):
    reply = ask(port, request_)
    assert reply == b"" or reply.startswith(b"HTTP/1.1 " + status + b"\r\n")  # or it had not read all of it
    assert ask(port, b"GET /x HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_a_client_that_says_nothing_is_cut(port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "READ_S", 0.05)
    with connect(port) as silent, connect(port) as slow:
        slow.sendall(b"GET /x HT")
        assert (read(silent), read(slow)) == (b"", b"")


def test_a_client_that_does_not_read_is_cut(port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "WRITE_S", 0.05)

    asked = threading.Event()

    async def much(path: str, accept: str) -> Page:
        asked.set()
        return Page(200, "text/plain", bytes(64 << 20))

    listener = listen("127.0.0.1", 0)
    thread = HttpThread(much, listener)
    thread.start()
    with connect(listener.getsockname()[1]) as connection:
        connection.sendall(b"GET /x HTTP/1.1\r\n\r\n")
        assert asked.wait(PATIENCE_S)
        while thread._open:  # nothing is read meanwhile
            time.sleep(0.01)
        assert len(read(connection)) < 64 << 20
    thread.close()


def test_silent_connections_keep_nobody_out(port: int, monkeypatch: pytest.MonkeyPatch):
    """The oldest one is closed for the next that comes."""
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    held = [connect(port) for _ in range(2)]
    assert ask(port, b"GET /x HTTP/1.1\r\n\r\n")
    assert read(held[0]) == b""
    held[1].sendall(b"GET /x HTTP/1.1\r\n\r\n")
    assert read(held[1])
    for each in held:
        each.close()


def test_requests_that_are_being_answered_keep_their_places(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    began, goes_on = threading.Semaphore(0), threading.Event()

    async def slow(path: str, accept: str) -> Page:
        began.release()
        await asyncio.to_thread(goes_on.wait, PATIENCE_S)
        return Page(200, "text/plain", b"done")

    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    thread = HttpThread(slow, listener)
    thread.start()
    asked = [connect(port) for _ in range(2)]
    for each in asked:
        each.sendall(b"GET /x HTTP/1.1\r\n\r\n")
        assert began.acquire(timeout=PATIENCE_S)
    assert ask(port, b"GET /x HTTP/1.1\r\n\r\n") == b""
    goes_on.set()
    for each in asked:
        assert read(each).endswith(b"done")
        each.close()
    thread.close()


def test_close_cuts_what_is_open():
    listener = listen("127.0.0.1", 0)
    thread = HttpThread(answer, listener)
    thread.start()
    with connect(listener.getsockname()[1]) as connection:
        thread.close()
        assert read(connection) == b""


def test_one_that_never_ran_can_be_closed():
    HttpThread(answer, listen("127.0.0.1", 0)).close()


def test_a_port_that_is_taken_is_told(port: int):
    with pytest.raises(StartupError, match="already in use") as error:
        listen("127.0.0.1", port)
    assert "--http-port" in error.value.todo


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path):
    path = tmp_path / "x.http"
    listen_unix(str(path)).close()
    listener = listen_unix(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()


def test_names_of_headers_have_no_case():
    assert parse_head(b"GET /a?b HTTP/1.1\r\nX-Y: z:\r\n\r\n") == ("GET", "/a", {"x-y": "z:"})


def test_a_lack_of_descriptors_does_not_make_it_spin(monkeypatch: pytest.MonkeyPatch):
    """accept() fails and the listener stays readable: without a pause, each turn of the loop tries again."""

    class Exhausted(socket.socket):
        num_attempts = 0
        tried = threading.Event()
        exhausted = True

        def accept(self) -> tuple[socket.socket, object]:
            Exhausted.num_attempts += 1
            self.tried.set()
            if self.exhausted:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    monkeypatch.setattr(http, "ACCEPT_PAUSE_S", 0.5)
    plain = listen("127.0.0.1", 0)
    listener = Exhausted(fileno=plain.detach())
    thread = HttpThread(answer, listener)
    thread.start()
    began = time.monotonic()
    try:
        with connect(int(listener.getsockname()[1])) as client:
            assert Exhausted.tried.wait(PATIENCE_S)
            for _ in range(20):  # turns of the loop
                turned = threading.Event()
                thread._loop.call_soon_threadsafe(turned.set)
                assert turned.wait(PATIENCE_S)
            assert Exhausted.num_attempts <= 1 + (time.monotonic() - began) / http.ACCEPT_PAUSE_S
            Exhausted.exhausted = False
            client.sendall(b"GET /x HTTP/1.1\r\n\r\n")
            assert read(client).startswith(b"HTTP/1.1 200")
    finally:
        thread.close()


def certificate(folder: Path, authority: trustme.CA, name: str = "127.0.0.1") -> tuple[str, str]:
    issued = authority.issue_cert(name)
    issued.cert_chain_pems[0].write_to_path(folder / "new.pem")
    issued.private_key_pem.write_to_path(folder / "new.key")
    for suffix in ("pem", "key"):
        (folder / f"new.{suffix}").replace(folder / f"http.{suffix}")
    return str(folder / "http.pem"), str(folder / "http.key")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def tls_port(tmp_path: Path, authority: trustme.CA) -> Iterator[int]:
    listener = listen("127.0.0.1", 0)
    thread = HttpThread(answer, listener, read_certificates("--http-tls", *certificate(tmp_path, authority)))
    thread.start()
    yield int(listener.getsockname()[1])
    thread.close()


def ask_with_tls(port: int, authority: trustme.CA) -> tuple[bytes, str]:
    """Returns the answer, and the serial number of the server's certificate. A connection that ends without
    TLS's own end raises."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with context.wrap_socket(
        connect(port), server_hostname="127.0.0.1", suppress_ragged_eofs=False
    ) as connection:
        serial = str((connection.getpeercert() or {})["serialNumber"])
        connection.sendall(b"GET /x HTTP/1.1\r\n\r\n")
        return read(connection), serial


def test_pages_over_tls(tls_port: int, tmp_path: Path, authority: trustme.CA, caplog) -> None:
    """A new certificate holds for new connections; a broken one changes nothing."""
    reply, first = ask_with_tls(tls_port, authority)
    assert reply.startswith(b"HTTP/1.1 200 OK") and b"/x for" in reply
    certificate(tmp_path, authority)
    _, second = ask_with_tls(tls_port, authority)
    assert second != first
    (tmp_path / "http.key").write_text("no key")
    _, third = ask_with_tls(tls_port, authority)
    assert third == second and "cannot be used" in caplog.text


def test_plain_text_gets_no_page_over_tls(tls_port: int, authority: trustme.CA) -> None:
    with connect(tls_port) as connection:
        connection.sendall(b"GET /x HTTP/1.1\r\n\r\n")
        assert b"200" not in read(connection)
    assert ask_with_tls(tls_port, authority)[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (("a.pem", ""), "--http-tls-key is missing"),
        (("", "a.key"), "--http-tls-cert is missing"),
        (("/nowhere/a.pem", "/nowhere/a.key"), "--http-tls-cert /nowhere/a.pem: No such file"),
    ],
)
def test_files_that_cannot_be_used_end_the_start(files: tuple[str, str], text: str) -> None:
    with pytest.raises(StartupError, match=text):
        read_certificates("--http-tls", *files)
    assert read_certificates("--http-tls", "", "") is None
