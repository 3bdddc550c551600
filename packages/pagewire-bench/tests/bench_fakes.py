"""Fakes of a load test: a target, an answer of the service, and load tests that did not run."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

from pagewire.v1 import generation_pb2
from pagewire_bench.driver import LevelRun
from pagewire_bench.load import Load
from pagewire_bench.prompts import BenchRequest
from pagewire_bench.record import BenchRecord
from pagewire_bench.targets.target import OnTokens, RequestFailed, ServedModel, TokenCounts
from pagewire_bench.trace import Trace

COUNTS = TokenCounts(5)
LOADS = (Load(concurrency=1), Load(concurrency=8))


def made_run(load: Load, factor: float = 1.0, failures: int = 0, seed: int = 0) -> LevelRun:
    """Forty answers of four tokens; factor: of all latencies."""
    draw = random.Random(f"{seed} {load.value}")
    traces = []
    for number in range(40):
        at = 0.1 * number
        arrivals, now = [], at + factor * draw.uniform(0.05, 0.08)
        for _ in range(4):
            arrivals.append((now, 1))
            now += factor * draw.uniform(0.01, 0.02)
        traces.append(Trace(at, at, arrivals, arrivals[-1][0], prompt_tokens=16))
    for trace in traces[:failures]:
        trace.error, trace.arrivals = "RESOURCE_EXHAUSTED QUEUE_FULL", []
    return LevelRun(load, 5.0, traces)


def made_record(factor: float = 1.0, *, failures: int = 0, **about: object) -> BenchRecord:
    """Two levels, within limits of goodput."""
    facts = {"model": "demo", "address": "here:1", "input_len": "16", **about}
    runs = [made_run(load, factor, failures, seed=int(100 * factor)) for load in LOADS]
    return BenchRecord(facts, {"ttft": 75.0}, runs)


class FakeTarget:
    """Answers in three messages; remembers the requests and how many were in flight."""

    def __init__(self, counts: TokenCounts = COUNTS, messages: int = 3) -> None:
        self.counts, self.messages = counts, messages
        self.sent: list[int] = []
        self.failing: set[int] = set()
        self.hanging: set[int] = set()
        self.in_flight = self.most = 0

    async def open(self) -> ServedModel:
        return ServedModel("fake", "fake")

    async def send(self, request: BenchRequest, on_tokens: OnTokens) -> TokenCounts:
        (number,) = request.prompt
        assert isinstance(number, int)
        self.sent.append(number)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            if number in self.failing:
                raise RequestFailed("BUSY", "no room")
            for _ in range(self.messages):
                await asyncio.sleep(0)
                on_tokens(1)
            if number in self.hanging:
                await asyncio.Event().wait()
        finally:
            self.in_flight -= 1
        return self.counts

    async def __aenter__(self) -> "FakeTarget":
        return self

    async def __aexit__(self, *_: object) -> None: ...


def answer(request: Any, context: Any) -> Iterator[generation_pb2.GenerateResponse]:
    """Two messages, of one token and of two."""
    for place, count in enumerate((1, 2)):
        ids = [7] * count
        part = generation_pb2.SequenceOutput(index=0, token_ids=ids, position=place, token_count=count)
        if place:
            part.finish.reason = generation_pb2.FINISH_REASON_MAX_TOKENS
        usage = generation_pb2.Usage(prompt_tokens=5, completion_tokens=3) if place else None
        yield generation_pb2.GenerateResponse(sequences=[part], usage=usage)
