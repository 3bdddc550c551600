"""Terminals: text tables and durations, standard input, and Ctrl-C."""

import contextlib
import io
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from pagewire.flags import UsageError

T = TypeVar("T")
CLEAR = "\x1b[H\x1b[J"
"""Cursor to the first column of the first line, and everything after it erased."""


def aligned(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Returns one line per row: the first `left` columns left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def short_seconds(seconds: float) -> str:
    """Returns a duration in at most seven characters: 1.2 ms, 0.34 s, 12.3 s, 4:05 min, 2.5 h."""
    if seconds < 0.1:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)}:{int(seconds % 60):02} min"
    return f"{seconds / 3600:.1f} h"


def shortened(text: str, most: int) -> str:
    """Returns a text of at most so many characters, with an ellipsis where some are left out, and without
    characters that a terminal would obey."""
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_json(message: Message) -> dict[str, Any]:
    """Returns a message as JSON, with the names of the protocol, and zeros where it has none."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


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


def interruptible(items: Iterable[T]) -> Iterator[T]:
    """Yields items; raises KeyboardInterrupt before the next one after a Ctrl-C, at the latest.

    Python raises KeyboardInterrupt wherever the main thread happens to be. In code that ignores exceptions,
    such as a callback of gRPC, it would be lost: so it is remembered here. Main thread only.
    """
    received = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal received
        received = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        for item in items:
            if received:
                raise KeyboardInterrupt
            yield item
    finally:
        signal.signal(signal.SIGINT, before)
