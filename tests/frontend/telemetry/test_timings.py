"""The parts of a request's time sum to the whole."""

import time

import pytest

from frontend.telemetry.timings import RequestTimings


def parts_of(clock: RequestTimings) -> dict[str, int]:
    timings = clock.timings()
    names = ("preprocess", "queue", "prefill", "decode", "total")
    return {name: getattr(timings, name).ToNanoseconds() for name in names}


@pytest.mark.parametrize("queue_us", [None, 0, 2, 10**9])
@pytest.mark.parametrize("progress", [[], [True], [True, True], [False], [True, False]])
@pytest.mark.parametrize("sent", [False, True])
def test_parts_sum_to_the_total(queue_us, progress, sent):
    clock = RequestTimings()
    if sent:
        clock.sent()
    if queue_us is not None:
        clock.started(queue_us)
    for tokens in progress:
        clock.progressed(time.monotonic_ns(), tokens=tokens)
    parts = parts_of(clock)
    assert sum(parts.values()) == 2 * parts["total"] and all(part >= 0 for part in parts.values())


def test_parts_are_what_they_are_called():
    clock = RequestTimings()
    clock.sent()
    start = time.monotonic_ns()
    clock.started(1000)
    clock.progressed(start + 5_000_000, tokens=True)
    clock.progressed(start + 9_000_000, tokens=True)
    parts = parts_of(clock)
    assert parts["queue"] == 1_000_000 and parts["decode"] == 4_000_000
    assert 4_000_000 <= parts["prefill"] < 5_000_000


def test_a_request_that_ends_in_the_queue():
    clock = RequestTimings()
    clock.sent()
    clock.progressed(time.monotonic_ns() + 3_000_000, tokens=False)
    parts = parts_of(clock)
    assert parts["queue"] >= 3_000_000 and parts["prefill"] == parts["decode"] == 0
