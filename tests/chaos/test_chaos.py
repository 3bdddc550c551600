"""Forty strikes under 80 streams: nothing is lost, repeated or changed. docs/testing.md has the rest."""

from pathlib import Path

import pytest

from tests.chaos.chaos import Setting, run
from tests.chaos.checker import tally
from tests.chaos.pauses import Pauses, table
from tests.chaos.run import describe

KILLS = {"engine": 13, "worker": 12, "frontend": 15}
OF_GROUPS = {"engine": 2, "worker": 4, "frontend": 1}
SEED = 6


@pytest.mark.timeout(1200)
def test_streams_survive_whatever_is_killed(tmp_path: Path) -> None:
    """Kills come in the middle of drafts; the undisturbed streams have none."""
    setting = Setting(speculate="simulated:tokens=4,batch=1024")
    result = run(KILLS, SEED, tmp_path / "history.jsonl", setting)
    assert result.is_fine, describe(result, tmp_path / "history.jsonl")
    history = result.history
    assert len(history.strikes) == sum(KILLS.values())
    assert set(tally(result.findings).values()) == {0}
    assert len(history.disturbed) >= 2 * len(history.cases), "hardly anything was there to be killed"
    resumed = sum(len(stream.attempts) > 1 for stream in history.disturbed)
    assert history.num_accepted > len(history.cases), "hardly anything was drafted"
    assert resumed > KILLS["frontend"], "the clients had nothing to continue"
    pauses = Pauses()
    pauses.add(history)
    print(f"{len(history.disturbed)} streams, {resumed} of them continued by their clients")
    print(table(pauses.rows()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("setting", [Setting(ranks=2), Setting(stages=2)], ids=["ranks", "stages"])
def test_streams_survive_whatever_is_killed_of_groups(setting: Setting, tmp_path: Path) -> None:
    """A kill of a worker is one of either of its ranks."""
    result = run(OF_GROUPS, SEED, tmp_path / "history.jsonl", setting)
    assert result.is_fine, describe(result, tmp_path / "history.jsonl")
    assert len(result.history.strikes) == sum(OF_GROUPS.values())
    assert set(tally(result.findings).values()) == {0}
