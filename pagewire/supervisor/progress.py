"""What a service writes to the terminal or file that it was started from."""

import contextlib
import time
from typing import TextIO

_CLEAR = "\r\x1b[K"
_QUIET_S = 5.0


def tell(text: str, stream: TextIO | None, end: str = "\n") -> None:
    """Writes and flushes. A stream that takes nothing, as on a full disk, does not end the service."""
    if stream is not None:
        with contextlib.suppress(OSError):
            print(text, file=stream, flush=True, end=end)


class LoadingLine:
    """Progress as one rewritten line on a terminal, and elsewhere as a line per item and every 5 s."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._last = ("", 0.0)
        self._dirty = False

    def show(self, what: str, fraction: float) -> None:
        """Shows progress. what: the item, such as "weights". fraction: 0 to 1."""
        if self._terminal:
            tell(f"{_CLEAR}loading {what} {fraction:4.0%}", self._stream, end="")
            self._dirty = True
        elif what != self._last[0] or time.monotonic() > self._last[1] + _QUIET_S:
            self._last = what, time.monotonic()
            tell(f"loading {what} {fraction:4.0%}", self._stream)

    def clear(self) -> None:
        """Erases the progress line."""
        if self._dirty:
            tell(_CLEAR, self._stream, end="")
            self._dirty = False
