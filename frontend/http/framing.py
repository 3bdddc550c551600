"""Refuses requests whose end two servers may see in different places.

A request with both Content-Length and Transfer-Encoding is what a smuggled one hides in: a proxy that goes by
one of them passes on, as the body of one client's request, what a server that goes by the other takes for the
next request on the connection. (RFC 9112, section 6.1: such a connection must not be used again.)
"""

from collections.abc import Awaitable, Callable

from frontend.http.body import Receive
from frontend.http.exchange import Scope, Send

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
_REFUSAL = b"Content-Length and Transfer-Encoding exclude each other"


def unambiguous(app: App) -> App:
    """Returns an ASGI application that answers 400 to such requests, closes their connections, and passes all
    others on."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and {name for name, _ in scope["headers"]} >= _LENGTHS:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})
        else:
            await app(scope, receive, send)

    return serve
