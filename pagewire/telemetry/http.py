"""A small HTTP/1.1 server: one GET or HEAD per connection, everything about it bounded.

It runs in a thread with an event loop of its own, so that it answers while the process's own loop is busy
or stuck: /healthz has to say so then. What it costs the process is its share of the interpreter while a
page is made.
"""

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

from pagewire.errors import StartupError
from pagewire.telemetry.pages import Page, text_page

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 8192
"""Of a request: its line and its headers."""
READ_S = 5.0
"""In which a request must have come."""
WRITE_S = 10.0
"""In which the answer must have gone."""
MAX_CONNECTIONS = 64

Answer = Callable[[str, str], Awaitable[Page]]
"""Takes a path without its query, and the header Accept."""


class HttpThread:
    """Listens from start() to close()."""

    def __init__(self, answer: Answer, listener: socket.socket) -> None:
        """listener: bound; closed by close()."""
        self._answer = answer
        self._listener = listener
        self._open: dict[asyncio.Task[None], socket.socket] = {}
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """From here on it answers."""
        self._thread.start()

    def close(self) -> None:
        """Cuts what is open and ends the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        else:
            self._loop.close()
        self._listener.close()

    # From here on: the thread.

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the main thread's
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Accepts in a callback: a task that is cancelled would lose the connection that it has just got."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        loop.add_reader(self._listener, self._accept)
        await self._stop.wait()
        loop.remove_reader(self._listener)  # the conversations are cancelled with the loop

    def _accept(self) -> None:
        """A connection is ours from here on: it is closed when its conversation is over."""
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is gone already, or we have too many descriptors
            return
        if len(self._open) >= MAX_CONNECTIONS:
            connection.close()
            return
        connection.setblocking(False)
        conversation = asyncio.get_running_loop().create_task(self._converse(connection))
        self._open[conversation] = connection
        conversation.add_done_callback(self._end)  # it may be cancelled before it has begun

    def _end(self, conversation: "asyncio.Task[None]") -> None:
        self._open.pop(conversation).close()
        if not conversation.cancelled() and (error := conversation.exception()):
            log.error("no answer over HTTP", exc_info=error)

    async def _converse(self, connection: socket.socket) -> None:
        """One request, one answer, end."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_HEAD_BYTES)
        writer.transport.set_write_buffer_limits(0)  # so that drain() waits until all of it has gone
        try:
            writer.write(await asyncio.wait_for(self._reply(reader), READ_S + WRITE_S))
            await asyncio.wait_for(writer.drain(), WRITE_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # it went away, or is too slow
        finally:
            writer.transport.abort()

    async def _reply(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_S)
        except asyncio.LimitOverrunError:
            return _encode(text_page(431, "the header is too long"), body=True)
        try:
            method, path, headers = parse_head(head)
        except ValueError:
            return _encode(text_page(400, "this is no HTTP request"), body=True)
        if method not in ("GET", "HEAD"):
            return _encode(text_page(405, "only GET and HEAD"), body=True)
        page = await self._answer(path, headers.get("accept", ""))
        return _encode(page, body=method == "GET")


def parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, path without its query, headers by their names in lower case. Raises ValueError."""
    line, *fields = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    method, target, version = line.split(" ")
    if version not in ("HTTP/1.0", "HTTP/1.1") or not target.startswith("/"):
        raise ValueError("no HTTP/1 request")
    headers: dict[str, str] = {}
    for each in fields:
        name, colon, value = each.partition(":")
        if not colon or not name or name != name.strip():
            raise ValueError("no header")
        headers[name.lower()] = value.strip()
    return method, target.partition("?")[0], headers


def _encode(page: Page, *, body: bool) -> bytes:
    head = [
        f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET, HEAD"] if page.status == 405 else []),
    ]
    return "\r\n".join((*head, "", "")).encode() + (page.body if body else b"")


def listen(host: str, port: int) -> socket.socket:
    """A TCP port; 0: a free one. Raises StartupError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise StartupError(
            f"cannot listen on {host}:{port} for metrics and health",
            "the port is already in use: perhaps another service is running"
            if taken
            else error.strerror or str(error),
            "choose another --http-port (0: a free one, -1: none) or --http-host",
        ) from None


def listen_unix(path: str) -> socket.socket:
    """A socket in a folder, for the supervisor. What a process before us has left there is replaced."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen()
    return listener
