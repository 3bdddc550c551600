"""The file of a load test has everything, and a file that is none is refused."""

import json
from pathlib import Path

import pytest

from bench_fakes import LOADS, made_record
from pagewire.flags import UsageError
from pagewire_bench.record import FORMAT, BenchRecord, read_record, write_record


def test_a_file_gives_the_same_figures(tmp_path: Path):
    record = made_record(failures=3)
    write_record(record, tmp_path / "a.json")
    again = read_record(tmp_path / "a.json")
    assert again.loads() == list(LOADS) and again.title == "demo at here:1"
    for load in LOADS:
        before, after = record.figures(load), again.figures(load)
        assert after.ttft.p50 == pytest.approx(before.ttft.p50, rel=1e-4)
        assert after.errors == before.errors == {"RESOURCE_EXHAUSTED QUEUE_FULL": 3}
        assert after.goodput == pytest.approx(before.goodput)
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["format"] == FORMAT
    assert [each["load"] for each in content["figures"]] == ["1 concurrent", "8 concurrent"]


def test_a_label_is_the_title():
    assert BenchRecord({"label": "mine"}, {}, []).title == "mine"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not written by"),
        ("[]", "not written by"),
        ("{}", "not written by"),
        ('{"format": "other"}', "its format is 'other'"),
        (json.dumps({"format": FORMAT, "about": {}, "goals": {}, "runs": [{}]}), "not written by"),
        ("[" * 100_000, "not written by"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, why: str):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=why):
        read_record(tmp_path / "a.json")


def test_files_that_cannot_be_opened(tmp_path: Path):
    with pytest.raises(UsageError, match="No such file"):
        read_record(tmp_path / "none")
    with pytest.raises(UsageError, match="--json"):
        write_record(made_record(), tmp_path)
