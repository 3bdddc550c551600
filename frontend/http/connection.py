"""A connection of uvicorn's HTTP/1.1 server with bounds on what a peer may hold without being served.

uvicorn bounds the size of a request's head. It waits forever for one that arrives slowly, keeps any number of
idle connections, and waits forever for a peer to read the end of an answer.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Seconds within which a connection must have sent the head of a request."""
LAST_READ_S = 30.0
"""Seconds that a peer may take to read the rest of an answer whose connection is being closed."""
MAX_CONNECTIONS = 4096
"""Connections per frontend; further ones are closed at once."""
ABORT = "abort"
"""Key of ASGI's scope["state"] with a function that cuts the connection without sending what is buffered."""


class BoundedConnection(H11Protocol):
    """Cuts connections that take too long."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.app_state = {**self.app_state, ABORT: self._abort}
        self._head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a head."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
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
        """Closes an idle connection."""
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
