"""The addresses of the engine cores: a list that may change while the frontend runs, ordered by rank.

It is polled. A source of another kind (such as a DNS name with several addresses) needs only look().
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from pagewire.errors import StartupError
from pagewire.host.file_watch import Signature, signature_of

log = logging.getLogger(__name__)

FILE_MARK = "@"
"""Prefix of a file name instead of an address: one address per line; empty lines and lines that begin with #
are ignored."""


class AddressSource(Protocol):
    """A source of addresses."""

    def look(self) -> list[str]:
        """Returns all current addresses, each once. Raises StartupError when they could never be read."""


class GivenAddresses:
    """Addresses from the command line, and files of addresses, which are read again when they change."""

    def __init__(self, given: Sequence[str]) -> None:
        self._sources: list[Iterable[str]] = [
            _File(Path(one.removeprefix(FILE_MARK))) if one.startswith(FILE_MARK) else [one] for one in given
        ]

    def look(self) -> list[str]:
        return list(dict.fromkeys(address for source in self._sources for address in source))


class _File:
    """One file. When it cannot be read any more, its last addresses remain valid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: Signature | None = None
        self._addresses: list[str] = []
        self._is_lost = False

    def __iter__(self) -> Iterator[str]:
        try:
            version = signature_of([self._path])
            if version != self._version or self._is_lost:
                self._addresses, self._version = _parse(self._path.read_text(encoding="utf-8")), version
            self._is_lost = False
        except (OSError, ValueError) as error:
            if self._version is None:
                why = f"--engine @{self._path}: {getattr(error, 'strerror', None) or error}"
                raise StartupError("cannot read the addresses of the engine cores", why) from error
            if not self._is_lost:
                log.warning(
                    "cannot read the addresses of the engine cores, the last ones stay valid: %s", error
                )
            self._is_lost = True
        return iter(self._addresses)


def _parse(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
