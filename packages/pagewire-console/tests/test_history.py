"""Samples of the last minutes: quantiles of what was observed since, and differences of totals."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from frontend.telemetry.counters import Counters
from pagewire.telemetry.figures import Histogram
from pagewire.v1 import admin_pb2
from pagewire_console.history import COLUMNS, LENGTH, WINDOW, History, quantile
from tests.patience import soon


def history_of(*loads: admin_pb2.RankLoad | None) -> tuple[History, Counters, Any]:
    """A history of cores with these loads; None: a core that is away."""
    counters = Counters()
    engine: Any = SimpleNamespace(cores=[SimpleNamespace(last_load=load) for load in loads])
    return History(counters, engine), counters, engine


def test_a_quantile_lies_within_its_bucket():
    histogram = Histogram((1.0, 2.0, 4.0))
    before = tuple(histogram.counts)
    assert quantile(histogram, before, 0.5) is None
    histogram.observe(1.5, 10)
    assert quantile(histogram, before, 0.5) == pytest.approx(1.5)
    histogram.observe(3.0, 10)
    assert quantile(histogram, before, 0.75) == pytest.approx(3.0)
    histogram.observe(100.0, 1000)
    assert quantile(histogram, before, 0.95) == 4.0  # the highest value that the histogram can tell


def test_a_quantile_is_of_what_came_since():
    histogram = Histogram((1.0, 2.0, 4.0))
    histogram.observe(0.5, 1000)
    before = tuple(histogram.counts)
    histogram.observe(3.0)
    assert quantile(histogram, before, 0.5) == pytest.approx(3.0)


def test_without_cores_there_is_nothing_to_plot():
    history, _, _ = history_of(None)
    sample = history.take()
    assert {getattr(sample, name) for name in COLUMNS} == {None}


def test_loads_of_several_cores_are_summed():
    history, counters, _ = history_of(
        admin_pb2.RankLoad(running_requests=2, waiting_requests=1, kv_used_tokens=50, kv_total_tokens=100),
        admin_pb2.RankLoad(running_requests=3, output_tokens_per_second=7.5, kv_total_tokens=100),
        None,
    )
    counters.first_token_seconds.observe(0.3)  # before the first sample: not of these minutes
    sample = history.take()
    assert (sample.running, sample.waiting, sample.kv_usage) == (5, 1, 0.25)
    assert sample.output_tokens_per_second == 7.5 and sample.first_token_p50 is None
    counters.inter_token_seconds.observe(0.0125, 100)
    again = history.take()
    assert again.inter_token_p50 == pytest.approx(0.0125) and again.first_token_p95 is None


def test_acceptance_is_that_of_the_window():
    load = admin_pb2.RankLoad(drafted_tokens=1000, accepted_draft_tokens=0)
    history, _, _ = history_of(load)
    assert history.take().acceptance is None
    load.drafted_tokens, load.accepted_draft_tokens = 1010, 4
    assert history.take().acceptance == pytest.approx(0.4)
    for _ in range(WINDOW):
        last = history.take()
    assert last.acceptance is None
    load.drafted_tokens, load.accepted_draft_tokens = 5, 5  # the core has restarted
    assert history.take().acceptance is None


async def test_samples_are_bounded_and_can_be_waited_for():
    history, _, _ = history_of(None)
    for _ in range(LENGTH + 5):
        history.take()
    assert len(history.rows) == LENGTH and history.num_sampled == LENGTH + 5
    waiter = asyncio.ensure_future(history.changed())
    history.take()  # before the task waits
    await soon(waiter)
    history.start()
    await history.changed()
    assert history.num_sampled > LENGTH + 6
    await history.stop()
    await history.stop()


def test_what_a_page_has_missed():
    history, _, _ = history_of(None)
    for _ in range(3):
        history.take()
    assert history.since(3) == [] and len(history.since(1)) == 2
    assert len(history.since(-1000)) == 3
