"""Which URLs are fetched: those of the hosts that --media-hosts names. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from pagewire.errors import StartupError

FLAG = "--media-hosts"
ANY = "*"
MAX_URL = 4096
"""Characters of a URL that is fetched."""
REFUSED = (
    "is not fetched: its host is none that this server fetches from, or has no public address; send the file"
    " itself, as data or as a data URI"
)
"""One sentence for every host and port that is not served: it says nothing about a network."""
_PORTS = {"https": 443, "http": 80}
_NAME, _PORT = r"\[[0-9a-f:.]+\]|[a-z0-9_.-]+", r"(?::(?P<port>[0-9]{1,5}))?"
_FLAGS = re.IGNORECASE | re.ASCII
_URL = re.compile(rf"(?P<scheme>https?)://(?P<host>{_NAME}){_PORT}(?P<target>[/?][!-~]*)?", _FLAGS)
_ENTRY = re.compile(rf"(?:(?P<scheme>https?)://)?(?P<host>{_NAME}|\*){_PORT}", _FLAGS)


class NotFetched(ValueError):
    """Why a medium is not fetched, as a client is told: "is ..." or "cannot ..."."""


@dataclass(frozen=True, slots=True)
class Url:
    """A URL that is fetched. host: in lower case, IPv6 without brackets. target: path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def is_url(uri: str) -> bool:
    """Returns whether a URI names a file that could be fetched, rather than having it."""
    return uri[:8].lower().startswith(("https:", "http:"))


class MediaHosts:
    """The hosts of --media-hosts. Empty: nothing is fetched."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """entries: NAME or NAME:PORT, by https alone; http://NAME, by http alone; * as a name: any host.
        Raises StartupError."""
        self._allowed = frozenset(map(_read_entry, entries))

    def __bool__(self) -> bool:
        return bool(self._allowed)

    def read(self, uri: str) -> Url:
        """Returns a URL that may be fetched. Nothing is resolved. Raises NotFetched."""
        found = _URL.fullmatch(uri.partition("#")[0])
        if found is None or len(uri) > MAX_URL:
            raise NotFetched(
                f"must be a URL like https://HOST/PATH of at most {MAX_URL} characters: ASCII without spaces,"
                " and without a name and password"
            )
        scheme, target = found["scheme"].lower(), found["target"] or "/"
        url = Url(scheme, _name(found["host"]), _port(found), target if target[0] == "/" else f"/{target}")
        if self._allowed.isdisjoint({(scheme, url.host, url.port), (scheme, ANY, url.port)}):
            raise NotFetched(REFUSED)
        return url


@cache
def media_hosts(entries: tuple[str, ...]) -> MediaHosts:
    """Returns the hosts that --media-hosts names. Raises StartupError."""
    return MediaHosts(entries)


def _read_entry(entry: str) -> tuple[str, str, int]:
    """Returns scheme, host and port of an entry. Raises StartupError."""
    found = _ENTRY.fullmatch(entry)
    if found is None or not 0 < _port(found) < 1 << 16:
        raise StartupError(
            f"{FLAG} {entry!r} is no host: write a name like images.example.com, NAME:PORT, http://NAME for a"
            " host without TLS, or * for all public ones"
        )
    return (found["scheme"] or "https").lower(), _name(found["host"]), _port(found)


def _name(host: str) -> str:
    return host.lower().strip("[]")


def _port(found: re.Match[str]) -> int:
    return int(found["port"]) if found["port"] else _PORTS[(found["scheme"] or "https").lower()]
