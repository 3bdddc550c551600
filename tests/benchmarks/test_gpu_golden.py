"""Golden figures: what counts as worse, and that the file has what it should."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import golden as gpu_golden
from benchmarks.gpu.golden import (
    CAPABILITIES,
    LAUNCHES,
    QUICK,
    key,
    launches_for,
    merged,
    read,
    report,
    worse,
    write,
)

ROW: dict[str, Any] = {
    "name": "_a_kernel",
    "launch": "a",
    "capability": 90,
    "registers": 100,
    "spilled": 0,
    "shared": 1000,
    "programs": 3,
}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"registers": 110, "shared": 900}, []),
        ({"registers": 112}, ["registers 100 -> 112"]),
        ({"spilled": 4}, ["spilled 0 -> 4"]),
        ({"programs": 4}, []),
        ({"programs": 2}, ["programs 3 -> 2"]),
        ({"launch": "b"}, ["has no golden figures"]),
    ],
)
def test_worse_by_more_than_a_tenth(changes: dict[str, Any], found: list[str]):
    row = ROW | changes
    assert sorted(worse([row], merged([ROW]))) == [f"{key(row)}: {what}" for what in found]


def test_of_variants_the_worst_counts():
    """A launch may have a kernel compiled twice."""
    (figures,) = merged([ROW, ROW | {"registers": 90, "programs": 2}]).values()
    assert (figures["registers"], figures["programs"]) == (100, 2)


def test_another_version_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is compiled no more is told; figures of other capabilities stay, if of the same version."""
    path = tmp_path / "golden.json"
    monkeypatch.setattr(gpu_golden, "FILE", path)
    monkeypatch.setattr(gpu_golden, "read", lambda _=None: read(path))
    monkeypatch.setattr(gpu_golden, "versions", lambda: {"triton": "1"})
    other, older = ROW | {"launch": "b"}, ROW | {"capability": 80}
    write([ROW, other], [90], path)
    write([older], [80], path)
    assert set(read(path)[1]) == {key(row) for row in (ROW, other, older)}
    assert report([ROW, other], [90]) == [] == report([older], [80])
    assert report([ROW], [90]) == [f"{key(other)}: is not compiled any more"]
    write([ROW], [90], path)
    assert set(read(path)[1]) == {key(ROW), key(older)}
    monkeypatch.setattr(gpu_golden, "versions", lambda: {"triton": "2"})
    assert report([ROW], [90]) == [
        "golden.json is of {'triton': '1'}, and this is {'triton': '2'}: write it anew"
    ]
    write([ROW], [90], path)
    assert set(read(path)[1]) == {key(ROW)}


def test_the_file_has_every_launch_on_every_device():
    """And nothing spills in any of them."""
    _, golden = read()
    found = {tuple(name.split(" of ", 1)[1].rsplit(" for sm_", 1)) for name in golden}
    expected = {
        (launch, str(capability)) for capability in CAPABILITIES for launch in launches_for(capability)
    }
    assert found == expected and QUICK < LAUNCHES == launches_for(90)
    assert all(figures["spilled"] == 0 for figures in golden.values())
    assert all(set(figures) == {"registers", "spilled", "shared", "programs"} for figures in golden.values())
