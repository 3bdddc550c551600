"""How long streams paused: per kind of strike, the longest gap in each stream that was alive. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tests.chaos.history import History, StreamRecord, Strike

BYSTANDERS = "bystanders"
"""Streams of the frontends that were not killed."""
SEVERAL = "several in succession"
_SHARES = (50, 95, 99)
"""Percentiles that are printed."""


@dataclass(frozen=True)
class Row:
    """Pauses of one kind, in seconds."""

    kind: str
    strikes: int
    pauses: tuple[float, ...]  # ascending

    def percentile(self, share: float) -> float:
        """The smallest pause that so many do not exceed."""
        return self.pauses[max(ceil(share * len(self.pauses)) - 1, 0)]


class Pauses:
    """Those of any number of histories."""

    def __init__(self) -> None:
        self._found: defaultdict[str, list[float]] = defaultdict(list)
        self._strikes: defaultdict[str, int] = defaultdict(int)

    def add(self, history: History) -> None:
        """One more; it need not be kept."""
        for kind, strikes, gaps in _bursts(history):
            self._found[kind] += gaps
            self._strikes[kind] += strikes

    def rows(self) -> list[Row]:
        """One for each kind of burst that there was."""
        found = self._found
        return [
            Row(kind, self._strikes[kind], tuple(sorted(found[kind])))
            for kind in sorted(found)
            if found[kind]
        ]


def summary(row: Row) -> dict[str, Any]:
    """For a file. Times are in seconds."""
    times = {f"p{share}": row.percentile(share / 100) for share in _SHARES} | {"max": row.pauses[-1]}
    return {"kind": row.kind, "strikes": row.strikes, "count": len(row.pauses), **times}


def table(rows: Sequence[Row]) -> str:
    """For people."""
    names = [f"p{share} s" for share in _SHARES] + ["max s"]
    lines = [f"{'killed':30} {'kills':>6} {'pauses':>7} " + " ".join(f"{name:>7}" for name in names)]
    for row in rows:
        figures = [*(row.percentile(share / 100) for share in _SHARES), row.pauses[-1]]
        lines.append(
            f"{row.kind:30} {row.strikes:6} {len(row.pauses):7} " + " ".join(f"{x:7.3f}" for x in figures)
        )
    return "\n".join(lines)


def _bursts(history: History) -> Iterator[tuple[str, int, list[float]]]:
    """Of each burst, its kind, its strikes, and pauses in seconds."""
    bursts: defaultdict[int, list[Strike]] = defaultdict(list)
    for strike in history.strikes:
        bursts[strike.burst].append(strike)
    ordered = [bursts[number] for number in sorted(bursts)]
    for place, burst in enumerate(ordered):
        start = burst[0].time
        stop = ordered[place + 1][0].time if place + 1 < len(ordered) else history.calm
        kind = _kind(burst)
        alive = [stream for stream in history.disturbed if _was_alive(history, stream, start)]
        if kind.startswith("frontend"):
            broken = [stream for stream in alive if _was_sent_again(stream, start, stop)]
            others = [stream for stream in alive if not _was_sent_again(stream, start, stop)]
            yield f"{kind}, {BYSTANDERS}", len(burst), list(_gaps(others, start, stop))
            alive = broken
        yield kind, len(burst), list(_gaps(alive, start, stop))


def _kind(burst: list[Strike]) -> str:
    if len(burst) > 1:
        return SEVERAL
    (strike,) = burst
    name = {"engine": "core"}.get(strike.victim, strike.victim)
    name = f"standby of a {name}" if strike.standby else name
    return name if strike.signal == "SIGKILL" else f"{name}, {strike.signal}"


def _was_alive(history: History, stream: StreamRecord, time: int) -> bool:
    over = stream.end is not None and stream.end.time <= time
    return history.is_streaming(stream) and stream.sent < time and not over


def _was_sent_again(stream: StreamRecord, start: int, stop: int | None) -> bool:
    return any(start <= time and (stop is None or time < stop) for time in stream.attempts[1:])


def _gaps(streams: Iterable[StreamRecord], start: int, stop: int | None) -> Iterator[float]:
    """The longest gap of each stream that ended after the burst began, and before the next one."""
    for stream in streams:
        times = [stream.sent, *(message.time for message in stream.messages)]
        if stream.end is not None:
            times.append(stream.end.time)
        gaps = [
            later - earlier
            for earlier, later in zip(times, times[1:], strict=False)
            if later >= start and (stop is None or later < stop)
        ]
        if gaps:
            yield max(gaps) / 1e6
