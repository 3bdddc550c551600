"""uvicorn, run inside the frontend's event loop.

uvicorn with h11: small, pure Python, widely run, with flow control in both directions; its other parser does
not bound the size of a request's head.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn

from frontend.http.body import Receive
from frontend.http.connection import BoundedConnection
from frontend.http.exchange import Scope, Send
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError

_KEEP_ALIVE_S = 5
"""Seconds that a connection may stay idle after an answer."""
_BACKLOG = 1024

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
_REFUSAL = b"Content-Length and Transfer-Encoding exclude each other"


def unambiguous(app: App) -> App:
    """Returns an ASGI application that refuses requests whose end two servers may see at different bytes.

    A request with both Content-Length and Transfer-Encoding is what a smuggled one hides in: a proxy that
    goes by one of them passes on, as the body of one client's request, what a server that goes by the other
    takes for the next request on the connection. Such a connection must not be used again (RFC 9112, section
    6.1): the answer is 400, and closes it.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and {name for name, _ in scope["headers"]} >= _LENGTHS:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})
        else:
            await app(scope, receive, send)

    return serve


class _Embedded(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures nothing."""
        yield


class HttpServer:
    """One port, served by an ASGI application on the running loop."""

    def __init__(self, app: Any, config: FrontendConfig, tls: ssl.SSLContext | None) -> None:
        """app: an ASGI application. config: openai_host, reuse_port and keepalive times."""
        self._config = config
        settings = uvicorn.Config(
            unambiguous(app),
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            backlog=_BACKLOG,
        )
        settings.load()
        settings.ssl = tls
        self._server = _Embedded(settings)
        self._listener: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self, port: int) -> int:
        """Opens the port, or a free one when it is 0; connections wait in the kernel's queue until start().
        Returns its number. Raises StartupError."""
        self._listener = _listen(self._config, port)
        return int(self._listener.getsockname()[1])

    async def start(self) -> None:
        """Starts answering."""
        assert self._listener is not None
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="http server")

    async def stop(self, grace: float) -> None:
        """Accepts no more connections; requests in flight have `grace` seconds. May be called again with a
        shorter grace."""
        if self._task is None:
            if self._listener is not None:
                self._listener.close()
            return
        self._server.should_exit = True
        await asyncio.wait([self._task], timeout=grace)
        if not self._task.done():
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            self._server.force_exit = True
            await asyncio.wait([self._task])


def _listen(config: FrontendConfig, port: int) -> socket.socket:
    host = config.openai_host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            _configure(listener, config)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise StartupError(
            f"cannot listen on {host}:{port} for HTTP",
            "the port is already in use" if taken else error.strerror or str(error),
            "choose another --openai-port (0: a free one) or --openai-host",
        ) from None
    listener.setblocking(False)
    return listener


def _configure(listener: socket.socket, config: FrontendConfig) -> None:
    """Sets options, which accepted connections inherit: clients that vanish silently hold KV blocks until
    the kernel's probes fail."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if config.reuse_port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(round(config.keepalive_time), 1))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(round(config.keepalive_timeout), 1))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
