"""A small HTTP/1.1 client for streams of server-sent events, without dependencies.

Connections are kept and used again, so that a request does not pay for a handshake.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

_MAX_LINE = 1 << 20
_MAX_HEADERS = 256
_MAX_BODY = 1 << 24
"""Bytes of an answer that is not a stream."""


class BadHttp(Exception):
    """The server's bytes are not the HTTP that was expected."""


@dataclass
class Connection:
    """An open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_used: bool = False  # for an earlier request

    async def close(self) -> None:
        """Closes the connection."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def line(self) -> bytes:
        """Returns a line without its end. Raises BadHttp, ConnectionError."""
        try:
            return (await self.reader.readuntil(b"\n")).rstrip(b"\r\n")
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the server closed the connection") from None
        except asyncio.LimitOverrunError:
            raise BadHttp(f"a line has more than {_MAX_LINE} bytes") from None

    async def exactly(self, count: int) -> bytes:
        """Returns so many bytes. Raises ConnectionError."""
        try:
            return await self.reader.readexactly(count)
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the server closed the connection") from None


class HttpAnswer:
    """A status with its headers, and the body as it arrives."""

    def __init__(self, connection: Connection, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers
        self._connection = connection
        self.is_complete = False

    async def parts(self) -> AsyncIterator[bytes]:
        """Yields the body in parts. Raises BadHttp, ConnectionError."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            while size := _size((await self._connection.line()).partition(b";")[0], 16, "a chunk"):
                yield (await self._connection.exactly(size + 2))[:-2]
            while await self._connection.line():
                pass  # trailers
        elif (length := self.headers.get("content-length")) is not None:
            yield await self._connection.exactly(_size(length, 10, "the body"))
        else:
            while part := await self._connection.reader.read(1 << 16):
                yield part
            return  # the connection has ended with the body
        self.is_complete = self.headers.get("connection", "").lower() != "close"

    async def events(self) -> AsyncIterator[bytes]:
        """Yields the data of server-sent events. Raises BadHttp, ConnectionError."""
        rest = b""
        async for part in self.parts():
            *lines, rest = (rest + part).split(b"\n")
            if len(rest) > _MAX_LINE:
                raise BadHttp(f"a line has more than {_MAX_LINE} bytes")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()

    async def body(self) -> bytes:
        """Returns the whole body. Raises BadHttp, ConnectionError."""
        found = b""
        async for part in self.parts():
            found += part
            if len(found) > _MAX_BODY:
                raise BadHttp(f"the answer has more than {_MAX_BODY} bytes")
        return found


class HttpClient:
    """Sends requests to one server. Not for several event loops."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, headers: Mapping[str, str]) -> None:
        """headers: of every request."""
        self._host, self._port, self._tls = host, port, tls
        self._headers = headers
        self._idle: list[Connection] = []

    def request(self, method: str, path: str, body: bytes = b"") -> "HttpExchange":
        """Returns the exchange, to be used in an async with statement."""
        return HttpExchange(self, method, path, body)

    async def send(self, method: str, path: str, body: bytes) -> tuple[Connection, HttpAnswer]:
        """Sends a request and reads the head of its answer. A kept connection that the server has closed
        meanwhile is replaced. Raises BadHttp, OSError."""
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            return connection, await self._exchange(connection, method, path, body)
        except ConnectionError:
            await connection.close()
            if not connection.is_used:
                raise
        except BaseException:
            await connection.close()
            raise
        connection = await self._connect()
        try:
            return connection, await self._exchange(connection, method, path, body)
        except BaseException:
            await connection.close()
            raise

    async def release(self, connection: Connection, is_complete: bool) -> None:
        """Keeps a connection whose answer was read to its end, and closes any other."""
        if is_complete:
            connection.is_used = True
            self._idle.append(connection)
        else:
            await connection.close()

    async def close(self) -> None:
        """Closes all idle connections."""
        while self._idle:
            await self._idle.pop().close()

    async def _connect(self) -> Connection:
        return Connection(
            *await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_MAX_LINE)
        )

    async def _exchange(self, connection: Connection, method: str, path: str, body: bytes) -> HttpAnswer:
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{self._port}", "Accept: */*"]
        lines += [f"{name}: {value}" for name, value in self._headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        connection.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        await connection.writer.drain()
        status = _status(await connection.line())
        headers: dict[str, str] = {}
        while line := await connection.line():
            if len(headers) == _MAX_HEADERS:
                raise BadHttp(f"there are more than {_MAX_HEADERS} headers")
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return HttpAnswer(connection, status, headers)


class HttpExchange:
    """One request and its answer. Leaving it early closes the connection, which cancels the request."""

    def __init__(self, client: HttpClient, method: str, path: str, body: bytes) -> None:
        self._client = client
        self._request = method, path, body

    async def __aenter__(self) -> HttpAnswer:
        self._connection, self._answer = await self._client.send(*self._request)
        return self._answer

    async def __aexit__(self, *_: object) -> None:
        await self._client.release(self._connection, self._answer.is_complete)


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise BadHttp(f"the answer begins with {line[:40]!r}")
    return int(rest[:3])


def _size(digits: bytes | str, base: int, what: str) -> int:
    try:
        size = int(digits, base)
    except ValueError:
        size = -1
    if not 0 <= size <= _MAX_BODY:
        raise BadHttp(f"the size of {what} is {digits[:40]!r}")
    return size
