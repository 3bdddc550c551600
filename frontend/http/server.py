"""uvicorn, run inside the frontend's event loop, with bounds on what a peer may hold without being served.

uvicorn with h11: small, pure Python, widely run, with flow control in both directions; its other parser does
not bound the size of a request's head. uvicorn waits forever for a head that arrives slowly, keeps any number
of idle connections, and waits forever for a peer to read the end of an answer.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from frontend.http.exchange import ABORT, Receive, Scope, Send
from pagewire.config import FrontendConfig
from pagewire.host.addresses import cannot_listen

_KEEP_ALIVE_S = 5
"""Seconds that a connection may stay idle after an answer."""
_BACKLOG = 1024
HEAD_S = 10.0
"""Seconds within which a connection must have sent the head of a request."""
LAST_READ_S = 30.0
"""Seconds that a peer may take to read the rest of an answer whose connection is being closed."""
MAX_CONNECTIONS = 4096
"""Connections per frontend; further ones are closed at once."""

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


class BoundedConnection(H11Protocol):
    """Cuts connections that take too long."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.app_state = {**self.app_state, ABORT: self._abort}
        self._head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handles data; a head that has begun to arrive has HEAD_S seconds."""
        if self._head_due is None and not self._is_serving:
            self._expect_head()
        super().data_received(data)
        if self._is_serving:
            self._expect_nothing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(LAST_READ_S, self._abort)

    @property
    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._head_due = self.loop.call_later(HEAD_S, self._abort)

    def _expect_nothing(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _abort(self) -> None:
        self.transport.abort()


class _Embedded(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
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
        todo = "choose another --openai-port (0: a free one) or --openai-host"
        raise cannot_listen(f"{host}:{port} for HTTP", error, todo) from None
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
