"""Fetches the files of media, in the calling thread, which is that of a process that can be killed.

A URL comes from a client, and neither it nor the server behind it is trusted. So a name is resolved once,
all of its addresses must be public, and the connection is made to one of these, not to the name.
"""

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse
from io import BufferedReader, RawIOBase
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from frontend.errors import InvalidRequest, MediaUnavailable
from frontend.fetching.addresses import is_public
from frontend.fetching.urls import REFUSED, MediaHosts, NotFetched, Url
from pagewire import __version__
from pagewire.limits import MAX_FETCHED_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TIME_LIMIT = 10.0
"""Seconds for all media of a request together, with the resolver's."""
MAX_REDIRECTS = 3
TOO_LONG = f"cannot be fetched: its server takes more than {TIME_LIMIT:g} s"
TOO_LARGE = f"cannot be fetched: the media of a prompt have more than {MAX_FETCHED_BYTES} bytes in all"
BROKEN = "cannot be fetched: its server cannot be reached, breaks the connection, or speaks no HTTP"
REDIRECTED = "cannot be fetched: its server redirects to what is not fetched"
_REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, *range(500, 600))
"""Statuses of a file that may be there later."""
_HEADERS = {
    "User-Agent": f"pagewire/{__version__}",
    "Accept": "image/png, image/jpeg, image/webp, image/gif",
    "Accept-Encoding": "identity",
    "Connection": "close",
}
_PIECE = 1 << 16

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host, for a port."""


def resolve(host: str, port: int) -> list[str]:
    """Returns the addresses of a host, in the resolver's order. Raises OSError and UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class NotNow(NotFetched):
    """Why a file cannot be fetched now: what its server does, and may cease to do."""


class Fetcher:
    """Fetches from the hosts of --media-hosts."""

    def __init__(
        self, hosts: MediaHosts, resolve: Resolve = resolve, judge: Callable[[str], bool] = is_public
    ) -> None:
        """judge: whether an address may be connected to."""
        self._hosts, self._resolve, self._judge = hosts, resolve, judge

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """Verifies certificates by the authorities of this machine."""
        return ssl.create_default_context()

    def fetch_all(self, named: Sequence[tuple[str, str]]) -> list[bytes]:
        """Returns the files of URLs, each with the path of its field. Raises InvalidRequest and
        MediaUnavailable."""
        deadline, files, left = monotonic() + TIME_LIMIT, list[bytes](), MAX_FETCHED_BYTES
        for path, uri in named:
            try:
                files.append(self.fetch(uri, deadline, left))
            except NotNow as error:
                raise MediaUnavailable({path: str(error)}) from error
            except NotFetched as error:
                raise InvalidRequest({path: str(error)}) from error
            left -= len(files[-1])
        return files

    def fetch(self, uri: str, deadline: float, most: int) -> bytes:
        """Returns a file of at most `most` bytes. deadline: of monotonic(). Raises NotFetched."""
        for number in range(MAX_REDIRECTS + 1):
            try:
                url, addresses = self._judged(uri)
            except NotFetched:
                if not number:
                    raise
                raise NotFetched(REDIRECTED) from None  # not the fault of the URL that the client knows
            try:
                with closing(self._connect(url, addresses, deadline)) as connected:
                    response = _answer(_Connection(connected, deadline), url)
                    if response.status not in _REDIRECTS:
                        return _body(response, most)
                    if not (location := response.getheader("Location", "")):
                        raise NotFetched(REDIRECTED)
                    uri = urljoin(str(url), location)
            except NotFetched:
                raise
            except TimeoutError:
                raise NotNow(TOO_LONG) from None
            except ssl.SSLCertVerificationError:
                raise NotFetched(
                    "cannot be fetched: its server has no valid certificate for the name"
                ) from None
            except (OSError, HTTPException, ValueError):
                raise NotNow(BROKEN) from None
        raise NotFetched(f"cannot be fetched: it is redirected more than {MAX_REDIRECTS} times")

    def _judged(self, uri: str) -> tuple[Url, Sequence[str]]:
        """Returns a URL that is fetched, and the addresses of its host. Raises NotFetched."""
        url = self._hosts.read(uri)
        try:
            addresses = self._resolve(url.host, url.port)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses or not all(map(self._judge, addresses)):
            raise NotFetched(REFUSED)
        return url, addresses

    def _connect(self, url: Url, addresses: Sequence[str], deadline: float) -> socket.socket:
        """Connects to the first of a host's addresses that accepts it. Raises OSError."""
        failure = OSError()
        for place, address in enumerate(addresses):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            made = socket.socket(family, socket.SOCK_STREAM)
            try:
                made.settimeout(_left(deadline) / (len(addresses) - place))
                made.connect((address, url.port))
                if url.scheme == "https":
                    made.settimeout(_left(deadline) / (len(addresses) - place))
                    made = self.tls.wrap_socket(made, server_hostname=url.host)
                return made
            except ssl.SSLError:
                made.close()
                raise
            except OSError as error:
                made.close()
                failure = error
        raise failure


class _Connection:
    """A socket whose operations all end by one time: what HTTPConnection and HTTPResponse use of it."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected, self._deadline = connected, deadline

    def sendall(self, data: bytes) -> None:
        self._connected.settimeout(_left(self._deadline))
        self._connected.sendall(data)

    def makefile(self, mode: str) -> BufferedReader:
        return BufferedReader(_Received(self._connected, self._deadline))

    def close(self) -> None:
        """Leaves the socket open: HTTPConnection calls it before the body of an answer is read."""


class _Received(RawIOBase):
    """What a socket receives until a time."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected, self._deadline = connected, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        self._connected.settimeout(_left(self._deadline))
        return self._connected.recv_into(buffer)


def _left(deadline: float) -> float:
    """Returns the seconds until a time. Raises TimeoutError."""
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _answer(connected: _Connection, url: Url) -> HTTPResponse:
    """Sends the request. Raises OSError and HTTPException."""
    connection = HTTPConnection(url.host, url.port)
    connection.sock = connected
    connection.putrequest("GET", url.target, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": url.authority, **_HEADERS}.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection.getresponse()


def _body(response: HTTPResponse, most: int) -> bytes:
    """Returns the file in an answer. Raises NotFetched, OSError and HTTPException."""
    if response.status != 200:
        kind = NotNow if response.status in _PASSING else NotFetched
        raise kind(f"cannot be fetched: its server answers {response.status}")
    if response.length is not None and response.length > most:
        raise NotFetched(TOO_LARGE)
    body = bytearray()
    while piece := response.read(_PIECE):
        body += piece
        if len(body) > most:
            raise NotFetched(TOO_LARGE)
    if response.length:
        raise NotNow(BROKEN)
    if not body:
        raise NotFetched("cannot be fetched: its server answers with an empty file")
    return bytes(body)
