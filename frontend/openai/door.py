"""The OpenAI API on a port of its own, as one object: opened, started and stopped like the gRPC server."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

from starlette.routing import Route

from frontend.http.server import HttpServer
from frontend.openai.app import make_app
from frontend.parts import FrontendParts
from pagewire.host.tls import Certificates


class Extension(Protocol):
    """What else the port serves: a plug-in of the group `pagewire.http`, such as the console."""

    name: str
    """Names its URL in the ready line."""
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
        extensions: Sequence[Extension] = (),
    ) -> None:
        """port: 0: a free one. certificates: None: no TLS. Raises StartupError."""
        self._config = parts.config
        self._port = port
        self._scheme = "http" if certificates is None else "https"
        context = certificates.server_context() if certificates is not None else None
        self._extensions = extensions
        more_routes = chain.from_iterable(each.routes() for each in extensions)
        self._server = HttpServer(make_app(parts, more_routes), parts.config, context)

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the ready line: the base URL of clients, and those of extensions."""
        host = self._config.openai_host
        host = f"[{host}]" if ":" in host else host
        base = f"{self._scheme}://{host}:{self._port}"
        return {"openai": f"{base}/v1"} | {each.name: f"{base}{each.path}" for each in self._extensions}

    def open(self) -> int:
        """Opens the port and returns its number. Raises StartupError."""
        self._port = self._server.open(self._port)
        return self._port

    async def start(self) -> None:
        """Starts answering."""
        for each in self._extensions:
            each.start()
        await self._server.start()

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)
        for each in self._extensions:
            await each.stop()
