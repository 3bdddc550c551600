"""What a process answers over HTTP: /metrics, /healthz, /readyz."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from pagewire.telemetry.board import Board

PATIENCE_S = 3.0
"""Within which a loop that lives comes around."""
_TEXT = "text/plain; charset=utf-8"

Answer = Callable[[bool], None]
Ask = Callable[[Answer], None]
"""Makes the process's loop call its argument with whether the process serves, when the loop comes around."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    content_type: str
    body: bytes


def text_page(status: int, text: str) -> Page:
    """For people and scripts: one line."""
    return Page(status, _TEXT, text.encode() + b"\n")


NOT_FOUND = text_page(404, "not found: there are /metrics, /healthz and /readyz")


class Pages:
    """The pages of one process. They are asked for in the HTTP thread."""

    def __init__(self, board: Board, ask: Ask | None = None) -> None:
        """ask: None: the loop has not begun; see begin()."""
        self._board = board
        self._ask = ask
        self._answered: asyncio.Future[bool] | None = None

    def begin(self, ask: Ask) -> None:
        """From here on there is a loop to ask."""
        self._ask = ask

    async def answer(self, path: str, accept: str) -> Page:
        """The page of a path. accept: the header of that name."""
        if path == "/metrics":
            content_type, body = self._board.render(accept)
            return Page(200, content_type, body)
        if path == "/healthz":
            return await self._health()
        if path == "/readyz":
            return await self._readiness()
        return NOT_FOUND

    async def _health(self) -> Page:
        """Progress, not existence: the loop itself has to answer. While it has not begun, we are starting."""
        if self._ask is None:
            return text_page(200, "starting")
        serves = await self._come_around(self._ask)
        return text_page(503, "the loop does not turn") if serves is None else text_page(200, "ok")

    async def _readiness(self) -> Page:
        serves = None if self._ask is None else await self._come_around(self._ask)
        return text_page(200, "ok") if serves else text_page(503, "not serving")

    async def _come_around(self, ask: Ask) -> bool | None:
        """Whether the process serves; None: its loop does not say. It is asked once at a time."""
        if self._answered is None or self._answered.done():
            loop = asyncio.get_running_loop()
            answered = self._answered = loop.create_future()
            # Called in the other thread, or when this one is gone.
            ask(lambda serves: _tell(loop, answered, serves))
        try:
            return await asyncio.wait_for(asyncio.shield(self._answered), PATIENCE_S)
        except TimeoutError:
            return None


def _tell(loop: asyncio.AbstractEventLoop, answered: "asyncio.Future[bool]", serves: bool) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(answered.set_result, serves)
