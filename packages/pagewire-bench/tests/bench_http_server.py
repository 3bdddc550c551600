"""A server that sends the bytes it was given, for tests of the HTTP client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class RawServer:
    """answer: bytes for a request's path and body; a connection is closed after an answer of no bytes, and
    after one that ends with CLOSE."""

    answer: Callable[[str, bytes], bytes]
    port: int = 0
    connections: int = 0
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._answer_all(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = [line[15:] for line in head.splitlines() if line.startswith("Content-Length:")]
            body = await reader.readexactly(int(length[0])) if length else b""
            self.heads.append(head)
            self.bodies.append(body)
            answer = self.answer(head.split()[1], body)
            writer.write(answer.removesuffix(CLOSE))
            await writer.drain()
            if not answer or answer.endswith(CLOSE):
                break


CLOSE = b"<close>"


def chunked(*parts: bytes) -> bytes:
    """An answer in chunks."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


def whole(body: bytes, status: str = "200 OK") -> bytes:
    """An answer with its length."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def run_server(answer: Callable[[str, bytes], bytes]) -> AsyncIterator[RawServer]:
    """Runs a server."""
    raw = RawServer(answer)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    raw.port = server.sockets[0].getsockname()[1]
    try:
        yield raw
    finally:
        server.close()
