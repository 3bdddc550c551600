"""The parts of a request's time sum to the whole."""

import itertools
import time

import pytest

from frontend.telemetry import tracing
from frontend.telemetry.timings import RequestTimings


class Clock:
    """A time at which each look finds 100 ns more."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        self.now += 100
        return self.now


@pytest.fixture(autouse=True)
def nanoseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time passes with looks at it alone."""
    monkeypatch.setattr("time.monotonic_ns", Clock())


def parts_of(clock: RequestTimings) -> dict[str, int]:
    timings = clock.timings()
    names = ("preprocess", "queue", "prefill", "decode", "preempted", "total")
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
    assert parts["prefill"] == 4_000_100


def test_a_request_that_ends_in_the_queue():
    clock = RequestTimings()
    clock.sent()
    clock.progressed(time.monotonic_ns() + 3_000_000, tokens=False)
    parts = parts_of(clock)
    assert parts["queue"] >= 3_000_000 and parts["prefill"] == parts["decode"] == 0


def test_a_pause_is_neither_prefill_nor_decode():
    clock = RequestTimings()
    clock.sent()
    start = time.monotonic_ns()
    clock.started(1000)
    clock.paused(2000, start + 4_000_000)
    clock.progressed(start + 6_000_000, tokens=True)
    clock.paused(3000, start + 10_000_000)
    clock.progressed(start + 11_000_000, tokens=True)
    parts = parts_of(clock)
    assert parts["preempted"] == 5_000_000 and parts["decode"] == 2_000_000
    assert parts["prefill"] == 3_000_100
    spans = tracing.parts_of(clock)
    assert [part.name for part in spans if part.end > part.begin][-5:] == [
        *("preempted", "prefill", "decode", "preempted", "decode"),
    ]
    assert all(before.end == after.begin for before, after in itertools.pairwise(spans))


def test_causes_sum_to_the_queue():
    clock = RequestTimings()
    clock.sent()
    clock.started(25, [1, 2, 3, 0, 4, 5, 6])
    clock.progressed(time.monotonic_ns() + 5_000_000, tokens=True)
    clock.ready()
    clock.told(1, 1)
    waits = clock.waits()
    client = waits.pop("client")
    causes = {"rows": 1000, "blocks": 2000, "budget": 3000, "trial": 0, "adapter": 4000, "kv_transfer": 5000}
    assert waits == {"queue": 4000, **causes, "encoder": 6000}
    assert client > 0
    clock.told(1, 1)
    assert clock.waits()["client"] == client, "nothing was ready"


def test_a_stream_that_moves_counts_the_transfer_beside_its_queue():
    clock = RequestTimings()
    clock.sent()
    clock.started(10, [0, 0, 0, 0, 0, 4, 0])
    clock.progressed(time.monotonic_ns() + 5_000_000, tokens=True)
    clock.started(30, [20, 0, 0, 0, 0, 7, 0])
    waits = clock.waits()
    assert waits["queue"] == 6000 and waits["rows"] == 0 and waits["kv_transfer"] == 11_000
    assert clock.parts()["queue"] == 10_000
