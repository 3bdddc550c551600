"""A process as others see it: its figures, and where they are served."""

from pagewire.config import WatchedConfig
from pagewire.telemetry.board import Board
from pagewire.telemetry.http import Answer, HttpThread, listen, listen_unix
from pagewire.telemetry.pages import Pages

DEFAULT_PORT = 9464

PORT = 9464
"""What --http-port is by default, where there is a port by default."""
NO_PORT = -1


class Watch:
    """Made when a process starts, closed when it ends."""

    def __init__(self, config: WatchedConfig, process: str) -> None:
        """process: the name in the label, unless --process-name says another one."""
        self.board = Board(config.process_name or process)
        self.pages = Pages(self.board)
        self.address: str | None = None
        """HOST:PORT, once it is served there."""
        self._config = config
        self._threads: list[HttpThread] = []

    @property
    def facts(self) -> dict[str, str]:
        """For the ready line."""
        return {} if self.address is None else {"http": self.address}

    def open(self, default_port: int, answer: Answer | None = None) -> None:
        """Serves, as far as it is wanted. default_port: where --http-port is not given; -1: nowhere.
        answer: other pages than ours. Raises StartupError."""
        config = self._config
        answer = answer or self.pages.answer
        port = default_port if config.http_port is None else config.http_port
        listeners = []
        if port >= 0:
            listeners.append(listen(config.http_host, port))
            host = f"[{config.http_host}]" if ":" in config.http_host else config.http_host
            self.address = f"{host}:{listeners[0].getsockname()[1]}"
        if config.http_socket:
            listeners.append(listen_unix(config.http_socket))
        for listener in listeners:
            self._threads.append(HttpThread(answer, listener))
            self._threads[-1].start()

    def close(self) -> None:
        """Serves nothing any more."""
        for thread in self._threads:
            thread.close()
        self._threads.clear()
