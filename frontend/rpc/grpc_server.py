"""The gRPC server: its address, credentials and options, and its replacement when it breaks.

grpc.aio decodes every call's path as UTF-8 in the one task that accepts calls. A call with another path,
which any client can send before authentication, ends that task: the server closes its sockets, finishes its
running calls, and accepts nothing more, in a process that lives on. So this module waits for the end of that
task, and a new server opens the same port at once. Streams of the old one continue there; connections are
made anew. (Seen in grpcio 1.85.1; harmless where it is fixed. Where the task has another name the server is
polled instead: 20 checks per second took half a percent of a core.)
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.host.tls import Certificates, TlsContent

log = logging.getLogger(__name__)

LOOK_S = 0.05
"""Seconds between two checks when there is no task to wait for: as long are connections refused."""
_TAKES_CALLS = "AioServer._server_main_loop"
"""Name of the coroutine that accepts calls."""
BIND_PATIENCE_S = 10.0
"""Seconds that the old server may take to close its socket; after that the port belongs to
another process."""
FOREVER_S = 7 * 24 * 3600.0
"""Seconds that streams of a broken server may take."""
MAX_SEND_BYTES = 64 << 20
MAX_STREAMS = 1024
"""Of a connection. Clients wait when they reach it, or open another one. A stream that its client has reset
counts until the server has taken the call."""
MAX_PENDING_CALLS = 16 * MAX_STREAMS
"""Calls that wait to be taken. gRPC cancels calls of any client where there are more, without a reason; by
default from 1,000 on, which one connection reached by resets. Each takes about 30 KB."""
PING_INTERVAL_MS = 5_000
"""Minimum interval of clients' pings, with and without calls."""


class GrpcServer:
    """One port, served by a grpc.aio server, and by another one when that breaks."""

    def __init__(
        self, make: Callable[[], grpc.aio.Server], bind: Callable[[grpc.aio.Server, int], int]
    ) -> None:
        """make: creates a server with all methods. bind: opens a port, or a free one when it is 0; returns
        its number; raises StartupError."""
        self.num_replaced = 0
        self._make = make
        self._bind = bind
        self._port = 0
        self._server = make()
        self._old: dict[grpc.aio.Server, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._taking_calls: set[asyncio.Task[Any]] = set()  # the task that accepts calls, when it was found

    def open(self, port: int) -> int:
        """Opens the port, or a free one when it is 0; returns its number. Raises StartupError."""
        self._port = self._bind(self._server, port)
        return self._port

    async def start(self) -> None:
        """Accepts calls."""
        await self._start_server()
        self._watch = asyncio.create_task(self._look(), name="grpc server")

    async def stop(self, grace: float) -> None:
        """Accepts no more calls; running ones have `grace` seconds. May be called again with a
        shorter grace."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            _ = self._watch.cancelled() or self._watch.exception()  # wait_broken() has raised it
        await asyncio.gather(*(server.stop(grace) for server in (self._server, *self._old)))
        await asyncio.gather(*self._old.values())

    async def wait_broken(self) -> None:
        """Never returns; raises when no server could replace a broken one."""
        assert self._watch is not None
        await asyncio.shield(self._watch)

    async def _look(self) -> None:
        while True:
            if pending := {task for task in self._taking_calls if not task.done()}:
                await asyncio.wait(pending)
            else:
                await asyncio.sleep(LOOK_S)
            error = await _failure_of(self._server)
            if error is not None:
                self.num_replaced += 1
                if self.num_replaced.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
                    kind, count = type(error).__name__, self.num_replaced
                    log.error("the gRPC server broke (%s) and was replaced (%d so far)", kind, count)
                await self._replace()

    async def _replace(self) -> None:
        """Replaces a server that has closed its socket, or is about to."""
        old = self._server
        self._old[old] = asyncio.create_task(self._retire(old), name="old grpc server")
        self._server = self._make()
        ends = time.monotonic() + BIND_PATIENCE_S
        while True:
            try:
                self._bind(self._server, self._port)
                break
            except StartupError:  # the old server has not closed its socket yet
                if time.monotonic() > ends:
                    raise
                await asyncio.sleep(LOOK_S)
        await self._start_server()

    async def _start_server(self) -> None:
        before = asyncio.all_tasks()
        await self._server.start()
        self._taking_calls = {
            task
            for task in asyncio.all_tasks() - before
            if getattr(task.get_coro(), "__qualname__", "") == _TAKES_CALLS
        }

    async def _retire(self, old: grpc.aio.Server) -> None:
        """Waits for the last stream of a broken server."""
        await old.stop(FOREVER_S)
        self._old.pop(old, None)


async def _failure_of(server: grpc.aio.Server) -> Exception | None:
    """Returns the error that broke the server, if that happens within LOOK_S."""
    try:
        await server.wait_for_termination(LOOK_S)
    except Exception as error:
        return error
    return None


def bind(
    server: grpc.aio.Server, config: FrontendConfig, port: int, certificates: Certificates | None
) -> int:
    """Opens the port, or a free one when it is 0; returns its number. Opens --loopback-port, too.
    certificates: None: no TLS. Raises StartupError."""
    address = f"{host_in_address(config.host)}:{port}"
    try:
        if config.loopback_port is not None:
            server.add_insecure_port(f"127.0.0.1:{config.loopback_port}")
        if certificates is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, server_credentials(certificates))
    except RuntimeError as error:
        raise StartupError(
            f"cannot listen on {address}",
            "the address is in use or is not this machine's",
            "choose another --port (0: a free one) or --host",
        ) from error


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Returns credentials for a port: each handshake uses the newest certificate. With --tls-client-ca,
    clients need a certificate."""
    served, lock = certificates.content, threading.Lock()  # gRPC fetches in threads of its own

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None: nothing has changed since the last call."""
        nonlocal served
        with lock:
            if served is certificates.content:
                return None
            served = certificates.content
            return _configuration(served)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served),
        fetch,  # type: ignore[arg-type]  # its types omit None, which means no change
        served.client_ca is not None,
    )


def _configuration(content: TlsContent) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(content.key, content.cert)], content.client_ca)


def host_in_address(host: str) -> str:
    """Returns a host as it is written before ":port"."""
    return f"[{host}]" if ":" in host else host


def server_options(config: FrontendConfig) -> list[tuple[str, int]]:
    """Returns gRPC's options. Times are in milliseconds."""
    return [
        # When on, a second server on the port is no error.
        ("grpc.so_reuseport", int(config.reuse_port)),
        ("grpc.max_receive_message_length", config.max_request_bytes),
        # With probes of the bandwidth gRPC accepts megabytes of each call that waits for its turn to be
        # received; without them, 64 KiB until then.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_send_message_length", MAX_SEND_BYTES),
        # Per connection: bounds what gRPC itself keeps for a client that opens and resets streams.
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING_CALLS),
        # Clients that wait long for a first token keep their connections alive with pings; C-core
        # would disconnect them after the third one.
        # (A name that gRPC does not know is no error: tests/frontend/test_pings.py pings.)
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients that vanish silently hold KV blocks until a ping fails.
        ("grpc.keepalive_time_ms", round(1000 * config.keepalive_time)),
        ("grpc.keepalive_timeout_ms", round(1000 * config.keepalive_timeout)),
        # gRPC waits a minute for the answer to a ping, regardless of the option before this one.
        ("grpc.http2.ping_timeout_ms", round(1000 * config.keepalive_timeout)),
    ]
