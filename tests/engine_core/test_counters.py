"""The hit rate, and the worker's waiting time."""

import pytest

from engine_core.counters import Counters, HitRate
from engine_core.io.process_control import Stopped
from engine_core.step.result import Result
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House


def test_the_hit_rate_is_that_of_the_last_queries() -> None:
    rate = HitRate()
    assert rate.ratio == 0
    rate.add(10, 0)
    rate.add(30, 20)
    assert rate.ratio == 0.5
    for _ in range(1000):
        rate.add(4, 1)
    assert rate.ratio == 0.25 and len(rate._last) == 1000


def step(number: int, started_us: int, duration_us: int) -> Result:
    return Result(number, [], duration_us=duration_us, started_ns=1000 * started_us)


def test_a_worker_waits_between_steps_while_there_is_work() -> None:
    counters = Counters()
    for result in (step(1, 100, 50), step(2, 160, 40), step(3, 200, 10)):
        counters.step_done(result)
    assert counters.worker_waiting == pytest.approx(10e-6), "150 to 160; the third one began at once"
    counters.idle()
    counters.step_done(step(4, 10_000, 10))
    counters.step_done(step(5, 10_030, 10))
    assert counters.worker_waiting == pytest.approx(30e-6), "idle time from 210 to 10,000 does not count"


def test_what_a_step_encodes_is_a_phase_of_it() -> None:
    counters = Counters()
    counters.step_done(Result(1, [], duration_us=9, forward_us=5))
    assert not counters.encode_seconds.count and "encode" not in counters.worker_phases
    counters.step_done(Result(2, [], duration_us=3_000_000, encode_us=2_000_000, prepare_us=5, forward_us=9))
    assert counters.encode_seconds.count == 1 and counters.encode_seconds.sum == pytest.approx(2.0)
    assert counters.worker_phases["encode"] == pytest.approx(2.0)


def test_a_core_without_requests_is_idle() -> None:
    house = House()
    house.put(add_request(1))
    house.run()
    house.core.counters.step_done(step(9, 100, 50))
    house.worker.stopped = True
    with pytest.raises(Stopped):
        house.core.step()
    house.core.counters.step_done(step(10, 10_000, 50))
    assert house.core.counters.worker_waiting == 0
