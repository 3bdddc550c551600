"""Simulations of recorded requests: with the recorded settings they give the recorded figures; other settings
change them in the right direction."""

import random
import re
from pathlib import Path

import pytest

from engine_core.recording.file import open_recording
from engine_core.recording.recorder import RecordedScheduler
from pagewire_replay.compare import _table, compare
from pagewire_replay.reader import RecordingReader
from pagewire_replay.replay import Outcome, Replay
from pagewire_replay.step_time_model import measure
from pagewire_replay.summary import percentile
from pagewire_replay.what_if import CannotTry
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.fakes import LIMITS, FakeWorker, add_request, make

BLOCKS, SIZE = 14, 4
HOST_S = 0.0005


def record(path: Path, *, ahead: bool = False, with_tokens: bool = False, requests: int = 40) -> None:
    """Two tenants, a pool that is too small, ends of all sorts; a step takes 1 ms and 10 us per token."""
    recording = open_recording(path)
    settings = {"num_blocks": BLOCKS, "block_size": SIZE, "max_num_seqs": 6, "max_num_batched_tokens": 24}
    scheduler = RecordedScheduler(recording, with_tokens=with_tokens, **settings)
    worker, draw, now = FakeWorker(BLOCKS, SIZE), random.Random(1), 0.0
    arrivals = [(draw.random() * 0.15, handle) for handle in range(1, requests + 1)]
    arrivals.sort(reverse=True)
    ends_at: list[float] = []
    while arrivals or scheduler.requests or ends_at:
        if not scheduler.requests and not ends_at:
            now = max(now, arrivals[-1][0])
        while arrivals and arrivals[-1][0] <= now:
            at, handle = arrivals.pop()
            message = add_request(
                handle,
                list(range(500, 509)) + [handle] * draw.randint(0, 6),
                n=draw.choice([1, 1, 2]),
                max_tokens=draw.randint(1, 20) if handle % 8 else 6,
                beams=None if handle % 8 else beam_search(2),
                stop_token_ids=range(100, 150) if handle % 8 else (),
                tenant=draw.choice(["large", "large", "small"]),
            )
            worker.namespaces[handle] = (message.tenant, "")
            scheduler.add(make(message, LIMITS, arrival=at))
        plan = scheduler.schedule(now)
        if plan.rows:
            worker.submit(plan)
            now += HOST_S
            begins = max(now, ends_at[-1] if ends_at else 0.0)
            ends_at.append(begins + 0.001 + 1e-5 * sum(plan.counts))
        if ends_at and (len(ends_at) == 1 + ahead or not plan.rows):
            now = max(now, ends_at.pop(0))
            result = worker.collect()
            took = 1000 + 10 * sum(worker.plans[result.step - 1].counts)
            scheduler.update(result._replace(duration_us=took))
    recording.close()


def replayed(path: Path) -> Outcome:
    outcome = Replay(RecordingReader(path)).run()
    assert outcome.difference is None
    return outcome


def table(path: Path, **changes: object) -> dict[str, list[str]]:
    """The figures that are printed, by name."""
    recording = RecordingReader(path)
    lines = list(compare(recording, replayed(path).figures, changes))
    rows = [re.split(r"  +", line) for line in lines[lines.index("") + 2 :]]
    return {name: cells for name, *cells in rows}


@pytest.mark.parametrize("with_tokens", [False, True])
def test_with_the_recorded_settings_the_figures_are_the_recorded_ones(tmp_path: Path, with_tokens: bool):
    """The formula is exact here, so every figure is; with nothing changed all three columns are equal.

    (But for the time after the last step, which is not in the recording.)
    """
    record(tmp_path / "r", with_tokens=with_tokens)
    rows = table(tmp_path / "r", policy="fair", num_blocks=BLOCKS)
    assert int(rows["preemptions"][0]) > 5 and int(rows["cached prompt tokens"][0]) > 20
    assert "queue time of small, p99" in rows
    for name in ("seconds", "output tokens/s"):
        recorded, *simulated = map(float, rows.pop(name))
        assert simulated == pytest.approx([recorded] * 2, rel=0.01)
    for name, cells in rows.items():
        assert len(set(cells)) == 1, name


def test_a_recording_one_step_ahead_is_simulated_one_step_ahead(tmp_path: Path):
    """The time between steps is hidden, and so unknown; the rest is the same."""
    record(tmp_path / "r", ahead=True)
    rows = table(tmp_path / "r", scheduling="sync")
    times, was_ahead = measure(RecordingReader(tmp_path / "r"))
    assert was_ahead and times.host == 0.0
    assert rows["output tokens"][0] == rows["output tokens"][1] == rows["output tokens"][2]
    assert int(rows["steps"][1]) == pytest.approx(int(rows["steps"][0]), rel=0.1)


def test_the_formula_is_found(tmp_path: Path):
    record(tmp_path / "r")
    times, was_ahead = measure(RecordingReader(tmp_path / "r"))
    assert not was_ahead and times.error < 1e-9
    assert times.coefficients == pytest.approx((0.001, 1e-5, 0.0, 0.0), abs=1e-12)
    assert times.host == pytest.approx(HOST_S)


def test_more_blocks_mean_no_preemption(tmp_path: Path):
    record(tmp_path / "r")
    rows = table(tmp_path / "r", num_blocks=100)
    assert int(rows["preemptions"][1]) > 5 and rows["preemptions"][2] == "0"
    assert float(rows["queue time, p99"][2].split()[0]) < float(rows["queue time, p99"][1].split()[0])


def test_without_the_prefix_cache_more_is_computed(tmp_path: Path):
    record(tmp_path / "r")
    rows = table(tmp_path / "r", prefix_cache=False)
    assert rows["cached prompt tokens"][2] == "0"
    assert int(rows["computed tokens"][2]) > int(rows["computed tokens"][1])


def test_the_small_tenant_waits_longer_with_first_come_first_served(tmp_path: Path):
    record(tmp_path / "r", requests=80)
    rows = table(tmp_path / "r", policy="fcfs")
    fair, fcfs = (float(cell.split()[0]) for cell in rows["queue time of small, p50"][1:])
    assert fair < fcfs


def test_long_names_of_tenants_leave_the_table_readable():
    long = [f"{'t' * 250}{end}" for end in "ab"]
    rows = {f"queue time of {name}, p50": "1.0 ms" for name in long} | {"steps": "7"}
    lines = list(_table({"recorded": rows, "what if": rows}))
    assert len(lines) == 4 and max(map(len, lines)) < 100
    assert lines[1].startswith("queue time of ttt") and "a, p50 " in lines[1] and "b, p50 " in lines[2]


def test_other_block_sizes_need_tokens(tmp_path: Path):
    record(tmp_path / "without")
    with pytest.raises(CannotTry, match="--record-tokens"):
        table(tmp_path / "without", block_size=2)
    record(tmp_path / "with", with_tokens=True)
    rows = table(tmp_path / "with", block_size=2, num_blocks=2 * BLOCKS)
    assert int(rows["cached prompt tokens"][2]) >= int(rows["cached prompt tokens"][1])
    assert rows["output tokens"][2] == rows["output tokens"][1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"num_blocks": 3}, "needs . blocks, but there would be 3"), ({"max_num_seqs": 1}, "1 may run at once")],
)
def test_impossible_settings_are_refused(tmp_path: Path, changes: dict[str, int], message: str):
    record(tmp_path / "r")
    with pytest.raises(CannotTry, match=message):
        table(tmp_path / "r", **changes)


def test_percentiles_are_values():
    assert percentile([], 50) == 0.0
    assert percentile([3.0], 99) == 3.0
    assert [percentile(list(range(101)), p) for p in (0, 50, 99)] == [0, 50, 99]
