"""The pages of a supervisor: those of all its children, merged.

Each child serves its pages on a Unix socket in the runtime folder, and labels its samples with its name. So
the supervisor need not understand metrics: it concatenates the samples of each family. A child that does not
answer is missing; `pagewire_supervisor_up` tells whether it should be there.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from pagewire.telemetry.pages import NOT_FOUND, Page, text_page

SUFFIX = ".http"
"""Suffix of the sockets' names: frontend-1.http."""
PATIENCE_S = 4.0
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
        if path == "/metrics":
            return await self._metrics(accept)
        if path == "/healthz":
            return await self._own(path, accept)
        if path == "/readyz":
            return await self._readiness()
        return NOT_FOUND

    async def _metrics(self, accept: str) -> Page:
        own = await self._own("/metrics", accept)
        theirs = await asyncio.gather(*(get(path, "/metrics", accept) for path in self._sockets()))
        pages = [page for page in theirs if page is not None and page.content_type == own.content_type]
        return Page(200, own.content_type, merge([own.body, *(page.body for page in pages)]))

    async def _readiness(self) -> Page:
        """Ready if a frontend is, since they share a port; without frontends, if an engine core is."""
        sockets = self._sockets(f"{self._serving}*")
        answers = await asyncio.gather(*(get(path, "/readyz", "") for path in sockets))
        if any(page is not None and page.status == 200 for page in answers):
            return text_page(200, "ok")
        return text_page(503, "not serving")

    def _sockets(self, name: str = "*") -> list[Path]:
        return sorted(self._folder.glob(name + SUFFIX))


async def get(socket: Path, path: str, accept: str) -> Page | None:
    """Returns a page of the process at a socket, or None if no process answers."""
    try:
        async with asyncio.timeout(PATIENCE_S):
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
