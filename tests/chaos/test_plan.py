"""Plans of kills: counts are kept, a seed is a plan, and each burst can be survived."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos import run as command
from tests.chaos.cases import NUM_CASES, choose_stop, make_cases
from tests.chaos.chaos import Result, Setting
from tests.chaos.history import History, Message, StreamRecord, Strike
from tests.chaos.killer import plan
from tests.chaos.pauses import BYSTANDERS, SEVERAL, Pauses, table
from tests.chaos.run import Limits, run_rounds, share

COUNTS = {"engine": 25, "worker": 25, "frontend": 30, "engine:SIGSTOP": 3}


def test_a_plan_has_what_was_ordered():
    bursts = plan(COUNTS, 6)
    blows = Counter((blow.victim, blow.signal) for burst in bursts for blow in burst)
    expected = {"engine": 25, "worker": 25, "frontend": 30}
    assert blows == {(name, "SIGKILL"): count for name, count in expected.items()} | {
        ("engine", "SIGSTOP"): 3
    }
    assert bursts == plan(COUNTS, 6) != plan(COUNTS, 7)


@pytest.mark.parametrize("seed", range(20))
def test_bursts_are_survivable(seed: int):
    sizes = Counter(len(burst) for burst in plan(COUNTS, seed))
    assert set(sizes) == {1, 2, 3} and sizes[1] > sizes[2] + sizes[3]
    for burst in plan(COUNTS, seed):
        assert sum(blow.victim == "frontend" for blow in burst) <= 2


def test_kills_are_dealt_out():
    shares = {"engine": 25, "worker": 25, "frontend": 30}
    assert share(80, shares) == shares
    assert share(7, shares) == {"engine": 2, "worker": 2, "frontend": 3}


def test_cases_are_of_all_kinds():
    cases = list(make_cases())
    assert len(cases) == NUM_CASES == len({case.params.seed for case in cases})
    assert sum(case.streams for case in cases) > NUM_CASES / 2


def test_cases_with_images_are_of_kinds_that_can_have_them():
    cases = list(make_cases(images=[b"a", b"b"]))
    assert len(cases) == NUM_CASES == len({case.params.seed for case in cases})
    assert {case.image for case in cases} == {b"", b"a", b"b"}
    assert not any(case.has_form or case.needs_stop or case.params.prompt_logprobs for case in cases)
    assert isinstance(cases[1].request["prompt"], list) and isinstance(cases[0].request["prompt"], str)


def test_a_stop_string_lies_late_and_across_a_border():
    texts = ["ab", "cd", "ef", "gh", "ij", "kl"]
    assert choose_stop(texts) == "ghij"
    with pytest.raises(ValueError):
        choose_stop(["a"] * 20)


def stream(number: int, times: list[int], attempts: list[int]) -> StreamRecord:
    """Times in milliseconds."""
    messages = [Message(1000 * time, 0, place, [1], "x") for place, time in enumerate(times)]
    return StreamRecord(number, 0, 0, attempts=[1000 * time for time in attempts], messages=messages)


def test_pauses_are_of_streams_that_were_alive():
    """A stream that begins after the kill has none, and a gap belongs to the kill before its end."""
    history = History(cases={0: {"streams": True}})
    for number, (times, attempts) in enumerate(
        [([10, 20, 520, 530, 540, 940], [0]), ([15, 30, 130, 535, 700, 800], [0, 100]), ([1000, 2000], [600])]
    ):
        history.streams[number] = stream(number, times, attempts)
    history.streams[2].sent = 600_000
    history.strikes = [
        Strike(25_000, 0, "frontend", "SIGKILL"),
        Strike(538_000, 1, "engine", "SIGKILL"),
        Strike(950_000, 2, "engine", "SIGKILL"),
        Strike(960_000, 2, "worker", "SIGKILL"),
    ]
    history.calm = 1_500_000
    pauses = Pauses()
    pauses.add(history)
    found = {row.kind: (row.strikes, row.pauses) for row in pauses.rows()}
    assert found == {
        "frontend": (1, (0.405,)),
        f"frontend, {BYSTANDERS}": (1, (0.5,)),
        "core": (1, (0.165, 0.4)),
        SEVERAL: (2, (0.4,)),
    }
    assert [row.percentile(0.5) for row in pauses.rows() if row.kind == "core"] == [0.165]
    assert "several in succession" in table(pauses.rows())


def test_rounds_that_are_written_down_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A round in which something was wrong counts in every later run; none begins that would end too late."""
    seeds: list[int] = []
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(command, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))

    def round_of(counts: dict[str, int], seed: int, path: Path, setting: Setting) -> Result:
        seeds.append(seed)
        path.write_text("history")
        history = History(
            begin={"seed": seed, "counts": counts, "device": "cpu", "cores": 1, "frontends": 3}, calm=1
        )
        history.strikes = [Strike(0, at, "engine", "SIGKILL") for at in range(sum(counts.values()))]
        return Result(history, [], ["stuck"] if seed == 7 else [])

    monkeypatch.setattr(command, "run", round_of)
    limits = Limits(kills=8, per_round=3, json=tmp_path / "kills.json")
    assert run_rounds(Limits(3, 3, json=limits.json), 6, Setting(), {"engine": 1}) == 0
    assert seeds == [6]
    assert run_rounds(Limits(8, 3, 25, limits.json), 6, Setting(), {"engine": 1}) == 1
    assert seeds == [6, 7]
    assert run_rounds(limits, 6, Setting(), {"engine": 1}) == 1
    assert seeds == [6, 7, 8]
    rounds = json.loads((tmp_path / "kills.json").read_text())["rounds"]
    assert [(one["seed"], one["kills"], one["wrong"]) for one in rounds] == [
        (6, 3, []),
        (7, 3, ["stuck"]),
        (8, 2, []),
    ]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["seed-7.jsonl"]
    assert run_rounds(Limits(2, 2, keeps_all=True), 9, Setting(), {"engine": 1}) == 0
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"seed-7.jsonl", "seed-9.jsonl"}
