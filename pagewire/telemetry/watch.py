"""The metrics of a process and the HTTP servers that publish them."""

import logging
import socket

from pagewire.config import WatchedConfig
from pagewire.host.addresses import PortInUse, is_loopback
from pagewire.host.tls import Certificates, read_certificates
from pagewire.telemetry.board import Board
from pagewire.telemetry.http import Answer, HttpThread, listen, listen_unix
from pagewire.telemetry.pages import Pages

log = logging.getLogger(__name__)

PORT = 9464
"""Default of --http-port, for processes that have one by default."""


class Watch:
    """Metrics and HTTP servers of one process, from its start to its end."""

    def __init__(self, config: WatchedConfig, process: str) -> None:
        """process: default of --process-name, the value of the process label."""
        self.board = Board(config.process_name or process)
        self.pages = Pages(self.board)
        self.address: str | None = None
        """HOST:PORT of the HTTP server, once there is one."""
        self._config = config
        self._threads: list[HttpThread] = []

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the ready event."""
        return {} if self.address is None else {"http": self.address}

    def open(self, default_port: int, answer: Answer | None = None) -> None:
        """Starts the configured servers. default_port: used if --http-port is not given; -1: none. answer:
        serves other pages than the process's own. Raises StartupError."""
        config = self._config
        answer = answer or self.pages.answer
        port = default_port if config.http_port is None else config.http_port
        listeners: list[tuple[socket.socket, Certificates | None]] = []
        if port >= 0:
            tls = read_certificates("--http-tls", config.http_tls_cert, config.http_tls_key)
            listeners.append((self._listen(port), tls))
            host = f"[{config.http_host}]" if ":" in config.http_host else config.http_host
            self.address = f"{host}:{listeners[0][0].getsockname()[1]}"
        if config.http_socket:
            listeners.append((listen_unix(config.http_socket), None))
        for listener, its_tls in listeners:
            # Scrapers elsewhere may know this machine by any name; on a loopback address only pages would.
            any_host = listener.family == socket.AF_UNIX or not is_loopback(config.http_host)
            self._threads.append(HttpThread(answer, listener, its_tls, any_host=any_host))
            self._threads[-1].start()

    def _listen(self, port: int) -> socket.socket:
        """Returns the socket of the HTTP port, a free one where the default is taken, as by a second service
        on this host. Raises StartupError."""
        host, chosen = self._config.http_host, self._config.http_port
        try:
            return listen(host, port)
        except PortInUse:
            if chosen is not None:
                raise
        listener = listen(host, 0)
        log.warning(
            "port %d is in use: metrics and health are on port %d (--http-port)",
            port,
            listener.getsockname()[1],
        )
        return listener

    def close(self) -> None:
        for thread in self._threads:
            thread.close()
        self._threads.clear()
