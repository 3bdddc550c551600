"""Sends the requests of one level of a sweep and remembers what came back when."""

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pagewire_bench.load import Amount, Load, Pattern, due_times
from pagewire_bench.prompts import RequestSource
from pagewire_bench.targets.target import RequestFailed, Target
from pagewire_bench.trace import Trace, spread_tokens

TIMEOUT = "timeout"
TOO_SHORT = "too few tokens"
INTERRUPTED = "interrupted"
_PAUSE_S = 0.05
"""After a failure in a closed loop: a service that refuses at once is not flooded."""


@dataclass(frozen=True)
class LevelRun:
    """One run of one level. seconds: from its start to the end of its last request."""

    load: Load
    seconds: float
    traces: list[Trace]


class Interrupted(Exception):
    """A run was cancelled. run: what it had measured; requests in flight have failed as INTERRUPTED."""

    def __init__(self, run: LevelRun) -> None:
        super().__init__(run.load.name)
        self.run = run


class Driver:
    """Sends requests to a target. Their numbers go on from run to run, so that no prompt comes twice."""

    def __init__(
        self,
        target: Target,
        source: RequestSource,
        *,
        request_timeout: float,
        is_exact: bool,
        pattern: Pattern = "poisson",
        seed: int = 0,
    ) -> None:
        """request_timeout: seconds. is_exact: an answer with fewer tokens than its maximum is an error."""
        self._target, self._source = target, source
        self._timeout, self._is_exact = request_timeout, is_exact
        self._pattern, self._seed = pattern, seed
        self._numbers = itertools.count()
        self._start = 0.0

    async def warm_up(self, count: int) -> None:
        """Sends so many requests one after the other. Raises RequestFailed with the reason of the first
        that fails."""
        for _ in range(count):
            request = self._source.request(next(self._numbers))
            try:
                async with asyncio.timeout(self._timeout):
                    await self._target.send(request, lambda tokens: None)
            except TimeoutError:
                raise RequestFailed(TIMEOUT, f"no answer within {self._timeout:g} s") from None

    async def run(self, load: Load, amount: Amount) -> LevelRun:
        """Runs one level to the end of its last request. Raises Interrupted when it is cancelled."""
        self._start = time.perf_counter()
        traces: list[Trace] = []
        try:
            if load.rate is not None:
                await self._open_loop(load.rate, amount, traces)
            else:
                await self._closed_loop(load.concurrency or 1, amount, traces)
        except asyncio.CancelledError:
            now = self._now()
            for trace in traces:
                if not trace.ended:
                    trace.error, trace.ended = INTERRUPTED, now
            raise Interrupted(LevelRun(load, now, traces)) from None
        return LevelRun(load, self._now(), traces)

    async def _open_loop(self, rate: float, amount: Amount, traces: list[Trace]) -> None:
        draw = random.Random(f"{self._seed} arrivals {rate}")
        times: Iterator[float] = due_times(rate, draw, self._pattern)
        async with asyncio.TaskGroup() as tasks:
            for due in itertools.islice(times, amount.num_requests):
                if amount.duration is not None and due > amount.duration:
                    return
                await asyncio.sleep(max(due - self._now(), 0))
                traces.append(Trace(due))
                tasks.create_task(self._send(traces[-1]))

    async def _closed_loop(self, concurrency: int, amount: Amount, traces: list[Trace]) -> None:
        async def client() -> None:
            while amount.num_requests is None or len(traces) < amount.num_requests:
                now = self._now()
                if amount.duration is not None and now >= amount.duration:
                    return
                trace = Trace(now)
                traces.append(trace)
                await self._send(trace)
                if trace.error:
                    await asyncio.sleep(_PAUSE_S)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, amount.num_requests or concurrency)):
                tasks.create_task(client())

    async def _send(self, trace: Trace) -> None:
        request = self._source.request(next(self._numbers))
        trace.sent = self._now()
        try:
            async with asyncio.timeout(self._timeout):
                counts = await self._target.send(
                    request, lambda tokens: trace.arrivals.append((self._now(), tokens))
                )
            trace.prompt_tokens = counts.prompt_tokens
            if counts.completion_tokens is not None and trace.arrivals:
                trace.arrivals = spread_tokens(trace.arrivals, counts.completion_tokens)
            if not trace.arrivals or (self._is_exact and trace.tokens < request.max_tokens):
                trace.error = TOO_SHORT
        except RequestFailed as error:
            trace.error = error.kind
        except TimeoutError:
            trace.error = TIMEOUT
        trace.ended = self._now()

    def _now(self) -> float:
        return time.perf_counter() - self._start
