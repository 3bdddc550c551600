"""Standard input as text."""

import contextlib
import io
import sys
from collections.abc import Iterator

from pagewire.flags import UsageError


@contextlib.contextmanager
def utf8_input() -> Iterator[None]:
    """Standard input is UTF-8 within the block, whatever the locale says. Raises UsageError for other
    bytes."""
    given = sys.stdin
    if isinstance(given, io.TextIOWrapper) and (given.encoding, given.errors) != ("utf-8", "strict"):
        given.reconfigure(encoding="utf-8", errors="strict")
    try:
        yield
    except UnicodeDecodeError:
        raise UsageError("standard input is not UTF-8") from None
