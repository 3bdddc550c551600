"""How far loading is, for people."""

import time
from typing import TextIO

_CLEAR = "\r\x1b[K"
_QUIET_S = 5.0


class LoadingLine:
    """One line that is rewritten on a terminal; elsewhere few lines: per thing, and every 5 s."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._last = ("", 0.0)
        self._dirty = False

    def show(self, what: str, fraction: float) -> None:
        """what: such as "weights". fraction: 0 to 1."""
        if self._terminal:
            self._stream.write(f"{_CLEAR}loading {what} {fraction:4.0%}")
            self._stream.flush()
            self._dirty = True
        elif what != self._last[0] or time.monotonic() > self._last[1] + _QUIET_S:
            self._last = what, time.monotonic()
            print(f"loading {what} {fraction:4.0%}", file=self._stream, flush=True)

    def clear(self) -> None:
        """Empties the line for whatever comes next."""
        if self._dirty:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._dirty = False
