"""A small HTTP/1.1 server: one GET or HEAD per connection, with bounds on size, time and connections.

It runs in a thread with its own event loop, so that it answers while the process's loop is busy or stuck:
/healthz has to say so then. Python's http.server bounds neither the size of a request's head nor the time
that a slow client takes to send it or to read the answer, and needs a thread for each of them.
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
from typing import Any

from pagewire.host.addresses import cannot_listen, host_name, is_no_site
from pagewire.host.tls import Certificates
from pagewire.telemetry.pages import Page, text_page

log = logging.getLogger(__name__)

_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
MAX_HEAD_BYTES = 8192
"""Limit of a request's first line and headers together."""
READ_S = 5.0
"""Seconds within which a request must be complete."""
WRITE_S = 10.0
"""Seconds within which the client must have read the answer."""
MAX_CONNECTIONS = 64
"""Limit at one time. One more closes the oldest that has sent no request yet, so silent ones use up none."""
ACCEPT_PAUSE_S = 1.0
"""Pause after accept() failed for lack of resources: the listener stays readable, so trying at once would
spin."""

Answer = Callable[[str, str], Awaitable[Page]]
"""Returns the page of a path (without its query) and an Accept header."""


class HttpThread:
    """Serves pages from start() to close()."""

    def __init__(
        self,
        answer: Answer,
        listener: socket.socket,
        certificates: Certificates | None = None,
        *,
        any_host: bool = True,
    ) -> None:
        """listener: bound; closed by close(). certificates: None: plain HTTP. any_host: False on a loopback
        address: a Host that may be the name of a page's site is refused."""
        self._any_host = any_host
        self._answer = answer
        self._listener = listener
        self._certificates = certificates
        self._open: dict[asyncio.Task[None], socket.socket] = {}
        self._silent: dict[
            asyncio.Task[Any], None
        ] = {}  # of these, those without a request, the oldest first
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Cuts open connections and ends the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        else:
            self._loop.close()
        self._listener.close()

    # The methods below run in the thread.

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals go to the main thread
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Accepts in a callback: a cancelled task would lose a connection that it has just accepted."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        loop.add_reader(self._listener, self._accept)
        await self._stop.wait()
        loop.remove_reader(self._listener)  # open connections are cancelled with the loop

    def _accept(self) -> None:
        """Accepts a connection, which is closed when its task ends."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_RESOURCES:  # else the client has gone already
                self._pause_accepting()
            return
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._silent), None)
            if oldest is None:
                connection.close()
                return
            self._silent.pop(oldest)
            oldest.cancel()
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._handle(connection))
        self._open[task] = connection
        self._silent[task] = None
        task.add_done_callback(self._end)  # also if it is cancelled before it has started

    def _pause_accepting(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        loop.call_later(ACCEPT_PAUSE_S, lambda: loop.add_reader(self._listener, self._accept))

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._silent.pop(task, None)
        self._open.pop(task).close()
        if not task.cancelled() and (error := task.exception()):
            log.error("an HTTP request failed", exc_info=error)

    async def _handle(self, connection: socket.socket) -> None:
        """Reads one request and answers it."""
        try:
            reader, writer = await self._connected(connection)
        except (OSError, TimeoutError):
            return  # no handshake
        try:
            writer.write(
                await asyncio.wait_for(self._reply(reader, asyncio.current_task()), READ_S + WRITE_S)
            )
            if self._certificates is None:
                writer.transport.set_write_buffer_limits(0)  # drain() waits until everything is sent
                await asyncio.wait_for(writer.drain(), WRITE_S)
            else:  # the end of the stream is a message of its own, and limits of 0 would pause for ever
                writer.close()
                await asyncio.wait_for(writer.wait_closed(), WRITE_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client left, or is too slow
        finally:
            writer.transport.abort()

    async def _connected(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns the streams of an accepted connection. Raises OSError, TimeoutError."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        context = None
        if self._certificates is not None:
            self._certificates.refresh()
            context = self._certificates.content.context
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=context,
            ssl_handshake_timeout=READ_S if context else None,
            ssl_shutdown_timeout=WRITE_S if context else None,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _reply(self, reader: asyncio.StreamReader, task: "asyncio.Task[Any] | None") -> bytes:
        """Returns the answer to the request that a reader yields. task: of its connection."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_S)
        except asyncio.LimitOverrunError:
            return _encode(text_page(431, "the header is too long"), body=True)
        if task is not None:
            self._silent.pop(task, None)
        try:
            method, path, headers = parse_head(head)
        except ValueError:
            return _encode(text_page(400, "this is not an HTTP request"), body=True)
        if method not in ("GET", "HEAD"):
            return _encode(text_page(405, "only GET and HEAD"), body=True)
        if not self._any_host and not is_no_site(host_name(headers.get("host", "localhost"))):
            return _encode(
                text_page(403, "Host is not known here: use an IP address or localhost"), body=True
            )
        page = await self._answer(path, headers.get("accept", ""))
        return _encode(page, body=method == "GET")


def parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Returns method, path without its query, and headers by lower-case name. Raises ValueError."""
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
    """Returns a listening TCP socket; port 0: a free one. Raises StartupError, PortInUse for a port that is
    taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        todo = "choose another --http-port (0: a free one, -1: none) or --http-host"
        raise cannot_listen(f"{host}:{port} for metrics and health", error, todo) from None


def listen_unix(path: str) -> socket.socket:
    """Returns a listening Unix socket for the supervisor; replaces the file of an earlier process."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen()
    return listener
