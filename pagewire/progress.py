"""How far loading is, for people."""

from typing import TextIO

_CLEAR = "\r\x1b[K"


class LoadingLine:
    """One line that is rewritten on a terminal; elsewhere a line per quarter."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._last = ("", -1)
        self._dirty = False

    def show(self, what: str, fraction: float) -> None:
        """what: such as "weights". fraction: 0 to 1."""
        if self._terminal:
            self._stream.write(f"{_CLEAR}loading {what} {fraction:4.0%}")
            self._stream.flush()
            self._dirty = True
        elif (what, int(4 * fraction)) != self._last:
            self._last = what, int(4 * fraction)
            print(f"loading {what} {fraction:4.0%}", file=self._stream, flush=True)

    def clear(self) -> None:
        """Empties the line for whatever comes next."""
        if self._dirty:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._dirty = False
