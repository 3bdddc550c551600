"""HTTP pages of a process: /metrics, /healthz, /readyz. Those of a supervisor are its children's, merged.

Each child serves its pages on a Unix socket in the runtime folder, and labels its samples with its name. So
the supervisor need not understand metrics: it concatenates the samples of each family. A child that does not
answer is missing; `pagewire_supervisor_up` tells whether it should be there.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagewire.telemetry.board import Board  # needs prometheus_client, which a base install has not

LOOP_PATIENCE_S = 3.0
"""Seconds within which a healthy loop completes an iteration."""
METRICS_PATH = "/metrics"
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

    def __init__(self, board: "Board", ask: Ask | None = None) -> None:
        """ask: None: the loop has not started yet; see begin()."""
        self._board = board
        self._ask = ask
        self._answered: asyncio.Future[bool] | None = None

    def begin(self, ask: Ask) -> None:
        """Sets how to ask the loop, which has started."""
        self._ask = ask

    async def answer(self, path: str, accept: str) -> Page:
        """Returns the page of a path. accept: the request's Accept header."""
        if path == METRICS_PATH:
            return self.metrics(accept)
        if path == "/healthz":
            return await self._health()
        if path == "/readyz":
            return await self._readiness()
        return NOT_FOUND

    def metrics(self, accept: str) -> Page:
        """Returns the page of metrics. Any thread may call it."""
        content_type, body = self._board.render(accept)
        return Page(200, content_type, body)

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
            return await asyncio.wait_for(asyncio.shield(self._answered), LOOP_PATIENCE_S)
        except TimeoutError:
            return None


def _tell(loop: asyncio.AbstractEventLoop, answered: "asyncio.Future[bool]", serves: bool) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(answered.set_result, serves)


SUFFIX = ".http"
"""Suffix of the sockets' names: frontend-1.http."""
CHILD_PATIENCE_S = 4.0
"""Seconds; longer than a child waits for its own loop."""
MAX_PAGE_BYTES = 64 << 20
_EOF = b"# EOF\n"


class MergedPages:
    """The supervisor's own pages and those of all sockets in the folder."""

    def __init__(
        self, own: Callable[[str, str], Awaitable[Page]], folder: Path, serving: str = "frontend"
    ) -> None:
        """own: answers for the supervisor itself. serving: begins the names of the children of which one must
        be ready."""
        self._own, self._folder, self._serving = own, folder, serving

    async def answer(self, path: str, accept: str) -> Page:
        if path == METRICS_PATH:
            own = await self._own(METRICS_PATH, accept)
            return await merged_metrics(own, sockets_in(self._folder), accept)
        if path == "/healthz":
            return await self._own(path, accept)
        if path == "/readyz":
            return await self._readiness()
        return NOT_FOUND

    async def _readiness(self) -> Page:
        """Ready if a frontend is, since they share a port; without frontends, if an engine core is."""
        sockets = sockets_in(self._folder, f"{self._serving}*")
        answers = await asyncio.gather(*(get(path, "/readyz", "") for path in sockets))
        if any(page is not None and page.status == 200 for page in answers):
            return text_page(200, "ok")
        return text_page(503, "not serving")


def sockets_in(folder: Path, name: str = "*") -> list[Path]:
    """Returns the sockets on which a supervisor's children serve their pages. name: a pattern."""
    return sorted(folder.glob(name + SUFFIX))


async def merged_metrics(own: Page, sockets: Iterable[Path], accept: str) -> Page:
    """Returns a page of metrics with those of the processes at sockets; one that does not answer is
    missing."""
    theirs = await asyncio.gather(*(get(path, METRICS_PATH, accept) for path in sockets))
    pages = [page for page in theirs if page is not None and page.content_type == own.content_type]
    return Page(200, own.content_type, merge([own.body, *(page.body for page in pages)]))


async def get(socket: Path, path: str, accept: str) -> Page | None:
    """Returns a page of the process at a socket, or None if no process answers."""
    try:
        async with asyncio.timeout(CHILD_PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                body = await _read(reader)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    line, *fields = head.decode().split("\r\n")
    types = [field.partition(":")[2].strip() for field in fields if field.lower().startswith("content-type:")]
    return Page(int(line.split(" ")[1]), types[0] if types else "", body)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Reads to the end. Raises LimitOverrunError for a page that is too long."""
    parts, size = [], 0
    while part := await reader.read(1 << 20):
        parts.append(part)
        size += len(part)
        if size > MAX_PAGE_BYTES:
            raise asyncio.LimitOverrunError("the page is too long", size)
    return b"".join(parts)


def merge(texts: list[bytes]) -> bytes:
    """Merges texts in Prometheus or OpenMetrics format: each family once, with all samples."""
    families: dict[bytes, tuple[list[bytes], list[bytes]]] = {}  # name -> (comments, samples)
    for text in texts:
        comments: list[bytes] = []
        samples: list[bytes] = []
        for line in text.splitlines(keepends=True):
            if line == _EOF:
                continue
            if line.startswith(b"# "):
                name = line.split(b" ", 3)[2]
                is_new = name not in families
                known, samples = families.setdefault(name, ([], []))
                comments = known if is_new or comments is known else []
                comments.append(line)
            else:
                samples.append(line)
    body = b"".join(b"".join(comments + samples) for comments, samples in families.values())
    return body + (_EOF if any(text.endswith(_EOF) for text in texts) else b"")
