"""What is remembered of one request of a load test."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Arrivals = Sequence[tuple[float, int]]
"""Messages with output: (seconds since the start of the run, tokens)."""


@dataclass
class Trace:
    """The life of one request. Times are in seconds since the start of its run.

    due: when it was to be sent. sent: when it was. ended: when its answer was complete, or failed. error: the
    kind of failure; empty for a complete answer.
    """

    due: float
    sent: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    error: str = ""

    @property
    def first(self) -> float:
        """The time to first token, in seconds, since the request was due."""
        return self.arrivals[0][0] - self.due

    @property
    def latency(self) -> float:
        """Seconds from when the request was due to its last token."""
        return self.arrivals[-1][0] - self.due

    @property
    def tokens(self) -> int:
        """Output tokens received."""
        return sum(tokens for _, tokens in self.arrivals)

    @property
    def per_token(self) -> float | None:
        """Seconds per output token after the first message; None if that was the only one."""
        rest = self.tokens - self.arrivals[0][1]
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / rest if rest else None

    def gaps(self) -> list[float]:
        """Returns the inter-token latencies in seconds."""
        return gaps(self.arrivals)


def gaps(arrivals: Arrivals) -> list[float]:
    """Returns inter-token latencies; the tokens of one message share the time since the last message."""
    found: list[float] = []
    for (before, _), (now, tokens) in pairwise(arrivals):
        found += [(now - before) / tokens] * tokens
    return found


def spread_tokens(arrivals: Arrivals, tokens: int) -> list[tuple[float, int]]:
    """Returns the messages with `tokens` divided evenly among them, for servers that report only a total.
    Messages that get none are left out."""
    shares = [
        tokens * (place + 1) // len(arrivals) - tokens * place // len(arrivals)
        for place in range(len(arrivals))
    ]
    return [(at, share) for (at, _), share in zip(arrivals, shares, strict=True) if share]
