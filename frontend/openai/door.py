"""The OpenAI API on a port of its own, as one object: opened, started and stopped like the gRPC server."""

from collections.abc import Iterator
from typing import Protocol

from starlette.routing import Route

from frontend.http.server import HttpServer
from frontend.openai.app import make_app
from frontend.parts import FrontendParts
from pagewire.host.tls import Certificates


class Extension(Protocol):
    """Something else that the port serves: the console."""

    path: str
    """Where it begins."""

    def routes(self) -> Iterator[Route]:
        """Yields its routes."""

    def start(self) -> None:
        """Starts its tasks, on the running loop."""

    async def stop(self) -> None:
        """Ends them. Idempotent."""


class OpenAiServer:
    """Serves one frontend's endpoints."""

    def __init__(
        self,
        parts: FrontendParts,
        port: int,
        certificates: Certificates | None = None,
        console: Extension | None = None,
    ) -> None:
        """port: 0: a free one. certificates: None: no TLS. console: None: it is off. Raises StartupError."""
        self._config = parts.config
        self._port = port
        self._scheme = "http" if certificates is None else "https"
        context = certificates.server_context() if certificates is not None else None
        self._console = console
        more_routes = console.routes() if console is not None else ()
        self._server = HttpServer(make_app(parts, more_routes), parts.config, context)

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the ready line: the base URL of clients, and the console's."""
        host = self._config.openai_host
        host = f"[{host}]" if ":" in host else host
        base = f"{self._scheme}://{host}:{self._port}"
        return {"openai": f"{base}/v1"} | (
            {"console": f"{base}{self._console.path}"} if self._console is not None else {}
        )

    def open(self) -> int:
        """Opens the port and returns its number. Raises StartupError."""
        self._port = self._server.open(self._port)
        return self._port

    async def start(self) -> None:
        """Starts answering."""
        if self._console is not None:
            self._console.start()
        await self._server.start()

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)
        if self._console is not None:
            await self._console.stop()
