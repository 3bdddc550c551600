"""What happened in a simulation, in order: to be read when it fails, and compared when it runs again."""

from collections.abc import Callable
from hashlib import blake2b


class Trace:
    """Events as tuples; text is made of them only when it is printed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: list[tuple[object, ...]] = []

    def __call__(self, *event: object) -> None:
        """Something happens now. event: who, what, and details; numbers and strings."""
        self._events.append((self._clock(), *event))

    def __len__(self) -> int:
        return len(self._events)

    def digest(self) -> str:
        """Equal for equal traces."""
        return blake2b(repr(self._events).encode(), digest_size=8).hexdigest()

    def lines(self, last: int | None = None) -> list[str]:
        """One line per event; the last so many."""
        events = self._events if last is None else self._events[-last:]
        return [f"{1e3 * float(str(event[0])):12.3f} ms  {' '.join(map(str, event[1:]))}" for event in events]
