"""Samples of the last minutes, one a second, from values that the frontend has anyway.

Loads are those of the cores' heartbeats and concern all frontends; latencies come from this frontend's
histograms. Sampling costs some microseconds a second, and the cores nothing.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from frontend.engine.client import EngineClient
from frontend.telemetry.counters import Counters
from pagewire.telemetry.figures import Histogram
from pagewire.v1 import admin_pb2

INTERVAL_S = 1.0
LENGTH = 600
"""Samples that are kept."""
WINDOW = 15
"""Samples over which quantiles and shares are taken: one second has few requests."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One second. Latencies in seconds; None: there was nothing to measure, or no core is known."""

    output_tokens_per_second: float | None
    running: int | None
    waiting: int | None
    kv_usage: float | None
    acceptance: float | None
    first_token_p50: float | None
    first_token_p95: float | None
    inter_token_p50: float | None
    inter_token_p95: float | None


COLUMNS = tuple(each.name for each in fields(Sample))
Row = tuple[float | int | None, ...]


@dataclass(frozen=True, slots=True)
class _Counts:
    """Totals since the start, whose differences are samples."""

    first_token: tuple[int, ...]
    inter_token: tuple[int, ...]
    drafted: int
    accepted: int


class History:
    """The last samples, and a way to wait for the next one."""

    def __init__(self, counters: Counters, engine: EngineClient) -> None:
        self.rows: deque[Row] = deque(maxlen=LENGTH)
        """By COLUMNS, the newest last."""
        self.num_sampled = 0
        self._counters = counters
        self._engine = engine
        self._window: deque[_Counts] = deque(maxlen=WINDOW + 1)
        self._changed = asyncio.Event()
        self._sampling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts sampling, on the running loop."""
        self._sampling = asyncio.create_task(self._run(), name="console history")

    async def stop(self) -> None:
        """Stops sampling. Idempotent."""
        if self._sampling is not None:
            self._sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sampling
            self._sampling = None

    def changed(self) -> Coroutine[Any, Any, object]:
        """Returns a coroutine that waits for the next sample after this call."""
        return self._changed.wait()

    def since(self, number: int) -> list[Row]:
        """Returns the samples after the one of this number, as far as they are kept."""
        missing = min(self.num_sampled - number, len(self.rows))
        return list(self.rows)[len(self.rows) - missing :]

    def take(self) -> Sample:
        """Takes a sample, appends it and returns it."""
        loads = [core.last_load for core in self._engine.cores if core.last_load is not None]
        self._window.append(self._count(loads))
        sample = self._sample(loads)
        self.rows.append(tuple(asdict(sample).values()))
        self.num_sampled += 1
        self._changed.set()
        self._changed = asyncio.Event()
        return sample

    async def _run(self) -> None:
        while True:
            self.take()
            await asyncio.sleep(INTERVAL_S)

    def _count(self, loads: Sequence[admin_pb2.RankLoad]) -> _Counts:
        return _Counts(
            tuple(self._counters.first_token_seconds.counts),
            tuple(self._counters.inter_token_seconds.counts),
            sum(load.drafted_tokens for load in loads),
            sum(load.accepted_draft_tokens for load in loads),
        )

    def _sample(self, loads: Sequence[admin_pb2.RankLoad]) -> Sample:
        old, new = self._window[0], self._window[-1]
        drafted, accepted = new.drafted - old.drafted, new.accepted - old.accepted
        total = sum(load.kv_total_tokens for load in loads)
        first, inter = self._counters.first_token_seconds, self._counters.inter_token_seconds
        return Sample(
            output_tokens_per_second=sum(load.output_tokens_per_second for load in loads) if loads else None,
            running=sum(load.running_requests for load in loads) if loads else None,
            waiting=sum(load.waiting_requests for load in loads) if loads else None,
            kv_usage=sum(load.kv_used_tokens for load in loads) / total if total else None,
            acceptance=accepted / drafted if drafted > 0 <= accepted else None,  # less: a core has restarted
            first_token_p50=quantile(first, old.first_token, 0.5),
            first_token_p95=quantile(first, old.first_token, 0.95),
            inter_token_p50=quantile(inter, old.inter_token, 0.5),
            inter_token_p95=quantile(inter, old.inter_token, 0.95),
        )


def quantile(histogram: Histogram, before: Sequence[int], share: float) -> float | None:
    """Returns a quantile of what was observed since the counts were `before`, interpolated within its bucket;
    None: nothing was. Values above all edges count as the last edge."""
    counts = [now - then for now, then in zip(histogram.counts, before, strict=True)]
    rest = share * sum(counts)
    if not any(counts):
        return None
    lower = 0.0
    for count, upper in zip(counts, histogram.edges, strict=False):
        if count and rest <= count:
            return lower + (upper - lower) * rest / count
        rest -= count
        lower = upper
    return lower
