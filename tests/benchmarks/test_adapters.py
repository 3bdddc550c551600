"""What benchmarks.adapters measures, on the built-in model."""

import sys

import pytest

from benchmarks import adapters

SMALL = "--rows 2 --rank 2 --different 2 --context 4 --steps 4 --rounds 1"


@pytest.mark.parametrize(
    ("more", "cases"),
    [
        ("", ["no adapters known", "none used", "one", "2"]),
        ("--loaded 2,5,3", ["2 loaded", "5 loaded", "3 loaded"]),
    ],
)
def test_cases(
    more: str, cases: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["adapters", "demo", *SMALL.split(), *more.split()])
    held: list[int] = []
    measure = adapters.measure

    def counted(runner: adapters.Runner, *given: object) -> float:
        held.append(len(adapters.parts_of(runner)[1].loaded))
        return measure(runner, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(adapters, "measure", counted)
    adapters.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line[:18].rstrip() for line in lines] == cases
    assert lines[0].endswith("1.000 of the rate")
    assert held == ([2, 5, 3] * 2 if more else [2] * 8)


def test_fewer_loaded_than_rows_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["adapters", "demo", "--different", "4", "--loaded", "4,3"])
    with pytest.raises(SystemExit):
        adapters.main()
    assert "--loaded: the rows have 4 adapters" in capsys.readouterr().err
