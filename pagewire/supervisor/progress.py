"""Shows loading progress on a terminal or in a log file."""

import time
from typing import TextIO

_CLEAR = "\r\x1b[K"
_QUIET_S = 5.0


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
            self._stream.write(f"{_CLEAR}loading {what} {fraction:4.0%}")
            self._stream.flush()
            self._dirty = True
        elif what != self._last[0] or time.monotonic() > self._last[1] + _QUIET_S:
            self._last = what, time.monotonic()
            print(f"loading {what} {fraction:4.0%}", file=self._stream, flush=True)

    def clear(self) -> None:
        """Erases the progress line."""
        if self._dirty:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._dirty = False
