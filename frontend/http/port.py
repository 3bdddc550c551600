"""The HTTP port of a frontend: the ASGI application of what plug-ins serve on it, and its server.

Starlette routes, and answers for paths that do not exist.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from frontend.call.call import Call
from frontend.http.endpoint import Endpoint
from frontend.http.error_body import error_body
from frontend.http.errors import NotServed
from frontend.http.exchange import Exchange, Receive, Scope, Send
from frontend.http.server import HttpServer
from frontend.parts import FrontendParts
from pagewire.host.tls import Certificates
from pagewire.telemetry.pages import METRICS_PATH, Page

Render = Callable[[str], Awaitable[Page]]
"""Returns the page of metrics for an Accept header."""


class Health:
    """/health and /ping: 200 when requests are accepted, else 503; without a token, for load balancers."""

    def __init__(self, parts: FrontendParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._parts.write_timeouts.writer(send) as writer:
            serves = self._parts.state.serves
            status, word = (200, "SERVING") if serves else (503, "NOT_SERVING")
            await Exchange(scope, receive, writer).respond(status, {"status": word})


def make_app(parts: FrontendParts, metrics: Render, routes: Iterable[Route]) -> Starlette:
    """Returns the application. routes: of the plug-ins."""

    async def scrape(parts: FrontendParts, body: dict[str, Any], call: Call, exchange: Exchange) -> None:
        page = await metrics(exchange.headers.get("accept", ""))
        await exchange.respond_bytes(page.status, page.body, page.content_type)

    health, scraped = Health(parts), Endpoint(parts, METRICS_PATH, scrape, parts.limits.control)
    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/ping", health, methods=["GET", "POST"]),
        Route(METRICS_PATH, scraped, methods=["GET"]),
        *routes,
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _not_served})
    app.router.redirect_slashes = False  # a redirect would precede all checks, and name the Host as it came
    return app


async def _not_served(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    what = "there is no such path" if error.status_code == 404 else "the path does not take this method"
    refusal = NotServed(error.status_code, f"{what}; docs/openai.md lists what is served")
    return JSONResponse(error_body(refusal), error.status_code, error.headers)


class Extension(Protocol):
    """What a plug-in of the group `pagewire.http` serves, such as the OpenAI API or the console."""

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


class HttpPort:
    """Serves the extensions of one frontend on one port."""

    def __init__(
        self,
        parts: FrontendParts,
        port: int,
        certificates: Certificates | None,
        metrics: Render,
        extensions: Sequence[Extension],
    ) -> None:
        """port: 0: a free one. certificates: None: no TLS. metrics: what /metrics has. Raises
        StartupError."""
        self._config = parts.config
        self._port = port
        self._scheme = "http" if certificates is None else "https"
        context = certificates.server_context() if certificates is not None else None
        self._extensions = extensions
        routes = chain.from_iterable(each.routes() for each in extensions)
        self._server = HttpServer(make_app(parts, metrics, routes), parts.config, context)

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the ready line: the URL of each extension."""
        host = self._config.openai_host
        host = f"[{host}]" if ":" in host else host
        base = f"{self._scheme}://{host}:{self._port}"
        return {each.name: f"{base}{each.path}" for each in self._extensions}

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
