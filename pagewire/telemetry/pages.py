"""The HTTP pages of a process: /metrics, /healthz, /readyz."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from pagewire.telemetry.board import Board

PATIENCE_S = 3.0
"""Seconds within which a healthy loop completes an iteration."""
_TEXT = "text/plain; charset=utf-8"

Answer = Callable[[bool], None]
Ask = Callable[[Answer], None]
"""Makes the process's loop call its argument in its next iteration, with True if the process serves."""


@dataclass(frozen=True, slots=True)
class Page:
    """An HTTP response."""

    status: int
    content_type: str
    body: bytes


def text_page(status: int, text: str) -> Page:
    """Returns a page with one line of text."""
    return Page(status, _TEXT, text.encode() + b"\n")


NOT_FOUND = text_page(404, "not found: there are /metrics, /healthz and /readyz")


class Pages:
    """The pages of one process, made in the HTTP thread."""

    def __init__(self, board: Board, ask: Ask | None = None) -> None:
        """ask: None: the loop has not started yet; see begin()."""
        self._board = board
        self._ask = ask
        self._answered: asyncio.Future[bool] | None = None

    def begin(self, ask: Ask) -> None:
        """Sets how to ask the loop, which has started."""
        self._ask = ask

    async def answer(self, path: str, accept: str) -> Page:
        """Returns the page of a path. accept: the request's Accept header."""
        if path == "/metrics":
            content_type, body = self._board.render(accept)
            return Page(200, content_type, body)
        if path == "/healthz":
            return await self._health()
        if path == "/readyz":
            return await self._readiness()
        return NOT_FOUND

    async def _health(self) -> Page:
        """Checks progress: the loop itself has to answer. Before it has started, the process is starting."""
        if self._ask is None:
            return text_page(200, "starting")
        serves = await self._come_around(self._ask)
        return text_page(503, "the loop makes no progress") if serves is None else text_page(200, "ok")

    async def _readiness(self) -> Page:
        serves = None if self._ask is None else await self._come_around(self._ask)
        return text_page(200, "ok") if serves else text_page(503, "not serving")

    async def _come_around(self, ask: Ask) -> bool | None:
        """Returns whether the process serves, or None if its loop does not answer. Asks once at a time."""
        if self._answered is None or self._answered.done():
            loop = asyncio.get_running_loop()
            answered = self._answered = loop.create_future()
            # Called in the loop's thread, perhaps after this one has ended.
            ask(lambda serves: _tell(loop, answered, serves))
        try:
            return await asyncio.wait_for(asyncio.shield(self._answered), PATIENCE_S)
        except TimeoutError:
            return None


def _tell(loop: asyncio.AbstractEventLoop, answered: "asyncio.Future[bool]", serves: bool) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(answered.set_result, serves)
