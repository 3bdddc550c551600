"""What is sent when, and what is remembered of it."""

import asyncio
import itertools

import pytest

from bench_fakes import FakeTarget
from pagewire_bench.driver import INTERRUPTED, TIMEOUT, TOO_SHORT, Driver, Interrupted
from pagewire_bench.load import Amount, Load
from pagewire_bench.prompts import BenchRequest
from pagewire_bench.targets.target import RequestFailed, TokenCounts
from tests.patience import PATIENCE_S


class Numbered:
    """The prompt of a request is its number."""

    def request(self, number: int) -> BenchRequest:
        return BenchRequest([number], 3)


def driver(target: FakeTarget, timeout: float = 60.0, is_exact: bool = True) -> Driver:
    return Driver(target, Numbered(), request_timeout=timeout, is_exact=is_exact)


async def test_a_closed_loop_keeps_so_many_in_flight():
    target = FakeTarget()
    run = await driver(target).run(Load(concurrency=4), Amount(10, None))
    assert target.sent == list(range(10)) and target.most == 4
    assert len(run.traces) == 10 and not any(trace.error for trace in run.traces)
    for trace in run.traces:
        assert trace.tokens == 3 and trace.prompt_tokens == 5
        assert trace.due <= trace.sent <= trace.arrivals[0][0] <= trace.ended <= run.seconds


async def test_few_requests_need_few_clients():
    target = FakeTarget()
    await driver(target).run(Load(concurrency=64), Amount(3, None))
    assert len(target.sent) == 3


async def test_an_open_loop_does_not_wait_for_answers():
    target = FakeTarget()
    target.hanging = set(range(6))
    run = asyncio.create_task(driver(target).run(Load(rate=1000.0), Amount(6, None)))
    async with asyncio.timeout(PATIENCE_S):
        while target.in_flight < 6:
            await asyncio.sleep(0.001)
    run.cancel()
    with pytest.raises(Interrupted) as cut:
        await run
    assert len(cut.value.run.traces) == 6
    assert all(trace.sent >= trace.due for trace in cut.value.run.traces)


async def test_a_request_without_an_answer_ends_in_time():
    target = FakeTarget()
    target.hanging = {0}
    run = await driver(target, timeout=0.01).run(Load(rate=1000.0), Amount(1, None))
    assert [trace.error for trace in run.traces] == [TIMEOUT]


async def test_numbers_go_on_so_that_no_prompt_comes_twice():
    target = FakeTarget()
    load = driver(target)
    await load.warm_up(2)
    for each in (Load(concurrency=2), Load(rate=1000.0)):
        await load.run(each, Amount(3, None))
    assert sorted(target.sent) == list(range(8))


async def test_a_duration_ends_both_loops(monkeypatch: pytest.MonkeyPatch):
    """On a clock that goes on by a millisecond with each look."""
    clock = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: next(clock) / 1000)
    for load in (Load(concurrency=2), Load(rate=2000.0)):
        run = await driver(FakeTarget()).run(load, Amount(None, 0.05))
        assert run.traces and all(trace.due <= 0.05 for trace in run.traces)


async def test_failures_are_counted_by_name_and_the_run_goes_on():
    target = FakeTarget()
    target.failing = {1}
    run = await driver(target).run(Load(concurrency=1), Amount(3, None))
    assert [trace.error for trace in run.traces] == ["", "BUSY", ""]


@pytest.mark.parametrize(
    ("messages", "is_exact", "error"), [(2, True, TOO_SHORT), (2, False, ""), (0, False, TOO_SHORT)]
)
async def test_short_answers(messages: int, is_exact: bool, error: str):
    run = await driver(FakeTarget(messages=messages), is_exact=is_exact).run(
        Load(concurrency=1), Amount(1, None)
    )
    assert [trace.error for trace in run.traces] == [error]


async def test_a_total_is_divided_among_messages():
    run = await driver(FakeTarget(TokenCounts(5, 7))).run(Load(concurrency=1), Amount(1, None))
    assert [tokens for _, tokens in run.traces[0].arrivals] == [2, 2, 3]


async def test_the_first_failure_of_the_warm_up_is_told():
    target = FakeTarget()
    target.failing = {1}
    with pytest.raises(RequestFailed, match="BUSY: no room"):
        await driver(target).warm_up(2)
    target.hanging = {2}
    load = driver(target, timeout=0.01)
    with pytest.raises(RequestFailed):
        await load.warm_up(3)


@pytest.mark.parametrize("load", [Load(concurrency=2), Load(rate=1000.0)])
async def test_a_cancelled_run_has_what_it_measured(load: Load):
    target = FakeTarget()
    target.hanging = {3}
    run = asyncio.create_task(driver(target).run(load, Amount(None, None)))
    while len(target.sent) < 6:
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(Interrupted) as cut:
        await run
    traces = cut.value.run.traces
    assert [trace.error for trace in traces[:4]] == ["", "", "", INTERRUPTED]
    assert all(trace.arrivals and trace.ended for trace in traces if not trace.error)
    assert target.in_flight == 0
