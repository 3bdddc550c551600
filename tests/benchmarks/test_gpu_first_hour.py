"""The first hour on a card, with parts that cost nothing: order and time, what is cut off, and the report."""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.first_hour import __main__ as command
from benchmarks.gpu.first_hour import facts, runner
from benchmarks.gpu.first_hour.bit_classes import Probe, classes
from benchmarks.gpu.first_hour.facts import Refused, device_facts
from benchmarks.gpu.first_hour.gpu_tests import Outcomes, run_all, summary
from benchmarks.gpu.first_hour.parts import Part, cpu_parts, cuda_parts
from benchmarks.gpu.first_hour.report import TABLES, write_report
from benchmarks.gpu.first_hour.row_equality import measure
from benchmarks.gpu.first_hour.runner import Record, Run, State, open_state

ROOT = Path(__file__).parents[2]
FACTS = {"device": "a GPU", "torch": "2", "triton": "3", "commit": "abc"}


def stub(name: str, code: str = "pass", seconds: float = 60, least: float = 0) -> Part:
    """A part of one line of Python; {output} is the file of its figures."""
    return Part(name, "a stub", seconds, ("-S", "-c", code), least)


def run_parts(folder: Path, parts: list[Part], seconds: float = 100) -> State:
    """What a command does, without its report."""
    state = open_state(folder, FACTS)
    run = Run(folder, state, seconds, lambda line: None)
    for part in parts:
        run.part(part)
    return state


def test_parts():
    """The same ones on both devices, within 40 minutes, of programs that are there and know their options."""
    on_a_gpu, on_a_cpu = cuda_parts(), cpu_parts()
    assert [part.name for part in on_a_gpu] == [part.name for part in on_a_cpu] == list(TABLES)
    assert sum(part.seconds for part in on_a_gpu) <= 60 * command.MINUTES
    for part in on_a_gpu + on_a_cpu:
        words = part.words(Path("/figures.json"), 70)[1:]
        words = words[: words.index("--")] if "--" in words else words  # flags of the service follow
        assert words[0] == "-m" and "--json=/figures.json" in words
        assert "--seconds=63" in words or not any("--seconds" in word for word in words)
        found = find_spec(words[1])
        assert found is not None and found.origin is not None
        text = Path(found.origin).read_text()
        options = {word.split("=")[0] for word in words if word.startswith("--")}
        assert all(f'"{option}"' in text for option in options), words
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))


def test_what_ended_is_not_run_again(tmp_path: Path):
    """Neither what failed, unless that is asked for; times add up over the runs."""
    note = "import sys, pathlib; pathlib.Path('{output}').write_text('[' + chr(34) + 'x' + chr(34) + ']')"
    parts = [stub("good", note), stub("bad", "import sys; print('no memory'); sys.exit(3)")]
    state = run_parts(tmp_path, parts)
    assert [state.parts[part.name].status for part in parts] == ["done", "failed"]
    assert state.parts["bad"].why == "exit code 3: no memory"
    assert json.loads((tmp_path / "good.json").read_text()) == ["x"]
    (tmp_path / "good.json").unlink()
    again = run_parts(tmp_path, parts)
    assert not (tmp_path / "good.json").exists() and again.used == pytest.approx(state.used, abs=1e-6)
    again.forget("good")
    again.save()
    run_parts(tmp_path, parts)
    assert (tmp_path / "good.json").exists()


def test_time_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A part that does not end is ended; for what needs more than is left there is a later run."""
    monkeypatch.setattr(runner, "GRACE_S", 0.0)
    slow = stub("slow", "import time; time.sleep(60)", seconds=0.4)
    state = run_parts(tmp_path, [slow, stub("late", least=99.9)])
    assert state.parts["slow"].why.startswith("not done in 0 s") and state.parts["slow"].seconds < 30
    assert state.parts["late"] == Record("left out", "the time was over; it needs 100 s")
    state = run_parts(tmp_path, [slow, stub("late", least=99.9)], seconds=1000)
    assert state.parts["late"].status == "done" and state.parts["slow"].status == "failed"


def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path):
    """With what it had started gone; a part that was cut off twice is left out."""
    code = f"""
from pathlib import Path
from benchmarks.gpu.first_hour.parts import Part
from benchmarks.gpu.first_hour.runner import Run, open_state
wait = "import os, time, pathlib; pathlib.Path('{{output}}').write_text(str(os.getpid())); time.sleep(100)"
folder = Path({str(tmp_path)!r})
run = Run(folder, open_state(folder, {FACTS!r}), 100, print)
for name, line in (("first", "open('{{output}}', 'a').write('x')"), ("second", wait)):
    run.part(Part(name, "a stub", 60, ("-S", "-c", line), 0))
"""
    pid = tmp_path / "second.json"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    while not pid.exists() or not pid.read_text():
        time.sleep(0.01)
    process.kill()
    process.wait()
    wait_for_the_end_of(int(pid.read_text()))
    state = open_state(tmp_path, FACTS)
    assert (state.parts["second"].status, state.parts["second"].attempts) == ("under way", 1)
    again = [stub("first", "open('{output}', 'a').write('x')"), stub("second"), stub("third")]
    state = run_parts(tmp_path, again)
    assert (tmp_path / "first.json").read_text() == "x"
    assert [state.parts[part.name].status for part in again] == ["done"] * 3
    state.parts["third"] = Record("under way", "", 1.0, 2)
    state.save()
    assert run_parts(tmp_path, again).parts["third"].why == "it was cut off 2 times"


def wait_for_the_end_of(pid: int) -> None:
    """Of a process that is no child of this one; init may not have looked yet."""
    stat = Path(f"/proc/{pid}/stat")
    while True:
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.01)


def test_figures_of_something_else_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another card or version, a file of another program, an unknown part, no card, one that is too old."""
    open_state(tmp_path, FACTS).save()
    with pytest.raises(Refused, match="has figures of device a GPU, and this is another: name another"):
        open_state(tmp_path, FACTS | {"device": "another"})
    for text in ("{}", "nothing", '{"facts": {}, "parts": {"a": {"b": 1}}}', "[]"):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(Refused, match="is no state of this program"):
            open_state(tmp_path, FACTS)
    with pytest.raises(Refused, match="finds no CUDA device"):
        device_facts("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(Refused, match=r"Tesla T4 has compute capability 7.5; 8.0 \(A100\)"):
        device_facts("cuda")
    monkeypatch.setattr(sys, "argv", ["gpu_first_hour", "--only=kernels,kils"])
    with pytest.raises(SystemExit, match="unknown parts: kils; there are tests, equality"):
        command.main()


FIGURES: dict[str, dict[str, Any]] = {
    "tests": {"outcomes": {"a": "passed", "b": "died"}, "why": {"b": "x | y"}},
    "equality": {
        "rows": [
            {"name": "norm", "classes": [[1, 2, 3]], "moved": [], "missing": {}},
            {"name": "product", "classes": [[1], [2, 3]], "moved": [3], "missing": {"8": "out of memory"}},
            {"name": "bad", "failed": "RuntimeError: no"},
        ],
        "left_out": ["head"],
    },
    "kernels": {"bandwidth": 1e12, "rate": 1e14, "rows": []},
    "steps": {"models": {}, "missing": ["8B: RuntimeError: no"]},
    "service": {
        "workloads": {"w": {name: {"median": 1.25} for name in ("tokens_per_s", "ttft_p50", "itl_p50")}},
        "breakdowns": {"w": [{"parts": {"between steps": 2.5}}]},
    },
    "kills": {
        "rounds": [
            {"seed": 6, "kills": 2, "streams": 5, "refused": 0, "wrong": [], "pauses": []},
            {"seed": 7, "kills": 1, "streams": 3, "refused": 1, "wrong": ["lost"]}
            | {"pauses": [{"kind": "core", "strikes": 1, "count": 3, "p50": 0.5, "p99": 1.0, "max": 2.0}]},
        ]
    },
}


def test_the_report(tmp_path: Path):
    """Each part's table, and how it went; a part without figures has a line and no table."""
    state = State(tmp_path / "state.json", FACTS, {name: Record("done", "", 60.0, 1) for name in FIGURES})
    state.parts["service"] = Record("failed", "exit code 1: x", 60.0, 1)
    for name, figures in FIGURES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(figures))
    write_report(tmp_path, state, cuda_parts())
    lines = (tmp_path / "report.md").read_text().splitlines()
    for line in (
        "# The first hour on a GPU",
        "- time: 6.0 minutes",
        "| service | failed: exit code 1: x | 60 |",
        "1 passed, 1 died",
        "| b | died | x / y |",
        "| norm | equal | 1 2 3 |  |",
        "| product | 2 classes | 1; 2 3 | at 3; 8: out of memory |",
        "| bad | failed | RuntimeError: no | |",
        "Left out, for want of time: head",
        "copy 1.000 TB/s, product 100.00 TFLOP/s",
        "- 8B: RuntimeError: no",
        "| w | 1.2 | 1.2 | 1.2 | 2.5 |",
        "3 kills, 8 streams, 1 refused",
        "1 of 2 rounds without a finding",
        "- seed 7: lost",
        "| 7 | core | 1 | 3 | 0.500 | 1.000 | 2.000 |",
    ):
        assert line in lines, line
    whole = json.loads((tmp_path / "report.json").read_text())
    assert whole["facts"] == FACTS and whole["parts"]["kills"]["figures"] == FIGURES["kills"]
    (tmp_path / "kills.json").write_text('{"rounds": [')  # cut off
    write_report(tmp_path, State(tmp_path / "state.json", FACTS), cuda_parts())
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert "| kills | not begun | |" in lines and "## Kills" not in lines


def test_rows_that_depend_on_their_batch_are_found():
    """By its size, by their place in it, and where memory ends."""
    row = torch.tensor([1e8, 1.0, -1e8, 1.0])

    def split_by_rows(size: int, place: int) -> torch.Tensor:
        a, b, c, d = row
        if size == 3 and place == 2:
            return a + (b + (c + d))
        return ((a + b) + c) + d if size < 16 else (a + c) + (b + d)

    def too_large(size: int, place: int) -> torch.Tensor:
        if size > 2:
            raise torch.OutOfMemoryError
        return row

    found = classes(Probe("a", split_by_rows, (1, 2, 3, 16, 17)))
    assert found == {"name": "a", "classes": [[1, 2, 3], [16, 17]], "moved": [3], "missing": {}}
    assert classes(Probe("b", too_large, (1, 2, 3)))["missing"] == {"3": "out of memory"}
    assert classes(Probe("c", lambda size, place: row, (1, 2)))["classes"] == [[1, 2]]


def test_probes_that_are_known_are_not_computed_again(tmp_path: Path):
    """One that fails costs no other; what the time did not reach is named."""
    output, made = tmp_path / "equality.json", []

    def make(name: str) -> Probe:
        made.append(name)
        if name == "bad":
            raise RuntimeError("no\nmore")
        return Probe(name, lambda size, place: torch.zeros(1), (1,))

    makers = [(name, lambda name=name: make(name)) for name in ("good", "bad")]
    measure(makers, output, 100)
    measure([*makers, ("late", lambda: make("late"))], output, -1)
    assert made == ["good", "bad"]
    figures = json.loads(output.read_text())
    assert figures["left_out"] == ["late"] and figures["rows"][1]["failed"] == "RuntimeError: no"


def test_tests_go_on_behind_one_that_ends_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What has an outcome is not run again."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take a second to import
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        "import os\n"
        "def test_good(): pass\n"
        "def test_ends(): os._exit(9)\n"
        "def test_bad(): assert False, 'so it is'\n"
    )
    outcomes = Outcomes(tmp_path / "tests.json")
    code = run_all([str(tmp_path)], outcomes)
    found = summary(outcomes)
    assert code == 1 and (found["passed"], found["died"], found["failed"]) == (1, 1, 1)
    assert sorted(found["why"].values()) == ["AssertionError: so it is", "its process ended with 9"]
    names = [test.rpartition("::")[2] for test in outcomes.of]
    assert names == ["test_good", "test_ends", "test_bad"]


def test_facts(monkeypatch: pytest.MonkeyPatch):
    """Of this machine; and of nvidia-smi, where it answers."""
    found = device_facts("cpu")
    assert found["device"].startswith("CPU") and found["torch"] == torch.__version__
    values = ", ".join(f"v{at}" for at in range(len(facts.QUERY.split(","))))
    answer = subprocess.CompletedProcess([], 0, stdout=values + "\n")
    monkeypatch.setattr(facts.subprocess, "run", lambda *words, **options: answer)
    assert facts.nvidia_smi()["driver_version"] == "v0"
