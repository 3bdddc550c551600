"""The files of the page: read once, from the package, and served without a token, since they hold no data.

A browser opens a page without headers of its own, so a token can only come from the page itself. What the
page may do is bounded by its Content-Security-Policy: scripts and styles of this port alone, no inline code,
no frames, and no string that becomes markup.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath

from starlette.routing import Route

from frontend.errors import ServiceError, SlowConsumer
from frontend.http.error_body import error_body, error_headers
from frontend.http.exchange import Exchange, Headers, Receive, Scope, Send, check_host
from frontend.parts import FrontendParts

HOME = "/console/"
"""Path of the page."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
)
_HEADERS = (
    ("content-security-policy", "; ".join(_POLICY)),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)


@dataclass(frozen=True, slots=True)
class FixedAnswer:
    """What a path answers."""

    status: int
    content: bytes
    content_type: str
    headers: Headers = _HEADERS


class PageFile:
    """An ASGI application that answers every request alike."""

    def __init__(self, parts: FrontendParts, answer: FixedAnswer) -> None:
        self._parts = parts
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        with self._parts.write_timeouts.writer(send) as writer:
            exchange = Exchange(scope, receive, writer)
            try:
                await self._serve(exchange)
            except SlowConsumer:
                exchange.abort()
            except ServiceError as error:
                await exchange.respond(error.http_status, error_body(error), error_headers(error))

    async def _serve(self, exchange: Exchange) -> None:
        config, answer = self._parts.config, self._answer
        check_host(exchange.headers, config.openai_allowed_host, any_host=bool(config.auth_file))
        with self._parts.limits.control(None):
            await exchange.respond_bytes(answer.status, answer.content, answer.content_type, answer.headers)


def page_routes(parts: FrontendParts) -> Iterator[Route]:
    """Yields the routes of the page and its files; "/" and the page's path without a slash lead to it."""
    home = FixedAnswer(308, b"", "text/plain", (*_HEADERS, ("location", HOME)))
    for path in ("/", HOME.rstrip("/")):
        yield Route(path, PageFile(parts, home), methods=["GET"])
    for file in (files("pagewire_console") / "static").iterdir():
        answer = FixedAnswer(200, file.read_bytes(), _TYPES[PurePath(file.name).suffix])
        path = HOME if file.name == "index.html" else HOME + file.name
        yield Route(path, PageFile(parts, answer), methods=["GET"])
