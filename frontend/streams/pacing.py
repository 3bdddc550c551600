"""Merges messages while the event loop lags: many messages of one token each cost more than it can carry.

A message costs several times what a token costs. While the loop keeps up, output leaves at once. When handing
one step's output to its streams takes long, streams that have begun get their messages in rounds, and what
has come for a stream since the last round is one message. The time between rounds is several times what a
round takes, so that the loop has time for everything else, and never more than `longest` seconds. First
messages, ends and errors do not wait.
"""

import asyncio
from typing import Protocol

SHORT_LAG_S = 0.004
"""A loop that hands out a step's output in less than this keeps up."""
FEW_STREAMS = 64
"""So few streams are no reason to merge: the loop was held up by something else."""
ROUNDS_PER_LAG = 8.0
"""Time between rounds, in terms of the time that a round takes."""
_MEMORY = 0.25
"""Weight of the latest round in the mean."""
_STALE_S = 1.0
"""Seconds after which the last measurement says nothing about the load."""


class Paced(Protocol):
    """A stream whose output may wait for a round."""

    def release(self) -> None:
        """A round begins: output may leave."""


class DeliveryPacer:
    """Decides when the streams of an event loop may send. Belongs to that loop."""

    def __init__(self, longest: float) -> None:
        """longest: seconds that output waits for a round, at most; 0: no output waits."""
        self.delay = 0.0
        """Seconds between rounds; 0: output leaves at once."""
        self._longest = longest
        self._lag = 0.0  # mean seconds that the loop takes to serve the streams of a round
        self._held: list[Paced] = []
        self._last_round = 0.0
        self._released: set[Paced] = set()  # since the measurement began
        self._began = self._measured = 0.0

    def holds(self, stream: Paced) -> bool:
        """Registers a stream whose output is due. Returns False when it may leave now; else the stream is
        released by the next round, and must not be registered again before."""
        if not self._longest:
            return False
        if self._held:
            self._held.append(stream)
            return True
        if self.delay:
            loop = asyncio.get_running_loop()
            now = loop.time()
            if now - self._measured < _STALE_S:
                self._held.append(stream)
                loop.call_later(max(self._last_round + self.delay - now, 0.0), self._release)
                return True
            self.delay = self._lag = 0.0
        self._measure(stream)
        return False

    def _release(self) -> None:
        """Begins a round."""
        held, self._held = self._held, []
        self._last_round = asyncio.get_running_loop().time()
        for stream in held:
            self._measure(stream)
            stream.release()

    def _measure(self, stream: Paced) -> None:
        """Counts a stream that may send, once; with the first one, a measurement begins."""
        self._released.add(stream)
        if len(self._released) == 1:
            loop = asyncio.get_running_loop()
            self._began = loop.time()
            # Called in the loop's next turn, beside the handlers that are woken now, and then behind them.
            loop.call_soon(loop.call_soon, self._served)

    def _served(self) -> None:
        """All handlers that were woken have had their turn: adapts the time between rounds."""
        self._measured = now = asyncio.get_running_loop().time()
        took = now - self._began if len(self._released) >= FEW_STREAMS else 0.0
        self._released.clear()
        self._lag += (took - self._lag) * _MEMORY
        self.delay = 0.0 if self._lag < SHORT_LAG_S else min(ROUNDS_PER_LAG * self._lag, self._longest)
