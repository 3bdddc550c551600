"""Kernels are compiled beside the worker; a failure there ends nothing."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kernels.cpu
from kernels.cpu import groups
from kernels.cpu.groups import Group
from kernels.cpu.instruction_sets import AVX2, AVX512, selected_name, selected_set
from worker.cpu import precompile

pytest.importorskip("llvmlite")


class Failed:
    """A process that has ended, with an error."""

    def wait(self) -> int:
        return 1


def tell(what: str, fraction: float) -> None:
    assert what == "compiling kernels"


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache, and which groups a process is started for; it ends at once, with an error. Nothing is
    compiled."""
    missing: list[str] = []

    def start(some: list[str]) -> Failed:
        missing.extend(some)
        return Failed()

    monkeypatch.setattr("kernels.cpu.compiler.cache.cache_folder", lambda: tmp_path)
    monkeypatch.setattr("kernels.cpu.compiler.cache.is_cached", lambda: True)
    monkeypatch.setattr(precompile, "_start", start)
    monkeypatch.setattr(groups, "why_not", lambda: None)
    monkeypatch.setattr(groups, "selected_set", lambda: AVX512)
    monkeypatch.setattr(precompile, "_num_processes", lambda: 1)
    monkeypatch.setattr(precompile, "_take_from", lambda queue, modules: os.close(queue))
    return missing


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(Group, "load", lambda group: names.append(group))
    return names


def test_the_first_start_compiles_and_later_ones_do_not(starts: list[str], imported: list[str]) -> None:
    """What failed is tried again at the next start. A standby takes what is there."""
    wanted = {Group.FLOAT32, Group.SAMPLER, Group.MODEL, Group.COMPACT}
    assert precompile.precompile(None) is not None and starts == []
    kernels = precompile.precompile(wanted)
    assert starts == ["float32", "sampler", "model"]
    kernels.begin()
    kernels.wait(tell)
    assert imported == ["float32", "sampler", "model"]  # here, then: it is not on disk
    precompile.main(selected_name(), "sampler", "float32")
    precompile.precompile(wanted)
    assert starts == ["float32", "sampler", "model", "model"]
    imported.clear()
    standby = precompile.precompile(None)
    standby.begin()
    standby.wait(tell)
    assert imported == ["float32", "sampler"]
    precompile.main(selected_name(), "model")
    assert precompile.precompile(wanted) is not None and len(starts) == 4


def test_weights_in_12_bits_are_for_some_sets(starts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "selected_set", lambda: AVX2)
    precompile.precompile({Group.SAMPLER, Group.COMPACT})
    assert starts == ["compact", "sampler"]


def test_what_cannot_run_here_is_not_compiled(starts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "why_not", lambda: "the CPU lacks AVX2")
    precompile.precompile({Group.SAMPLER, Group.MODEL})
    assert starts == ["sampler"]
    monkeypatch.setattr("kernels.cpu.compiler.cache.is_cached", lambda: False)  # nowhere to leave it
    precompile.precompile({Group.SAMPLER, Group.MODEL})
    assert starts == ["sampler"]


def test_processes_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each module is taken once, in order, by whichever process is idle."""
    taken: list[str] = []
    monkeypatch.setattr(importlib, "import_module", taken.append)
    names = ["one", "two", "three"]
    queue = precompile._filled_queue(len(names))
    assert os.read(queue, 1) == bytes([0])  # by another process
    precompile._take_from(queue, names)
    assert taken == ["kernels.cpu.two", "kernels.cpu.three"]
    os.close(queue)


def test_a_failure_is_left_to_the_code_that_uses_them(
    starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(group: Group) -> None:
        raise ImportError(group)

    monkeypatch.setattr(Group, "load", fail)
    kernels = precompile.precompile({Group.SAMPLER})
    kernels.begin()
    kernels.wait(tell)


def test_waiting_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch, imported: list[str]) -> None:
    """Else the engine core would take it for hung. The child waits for the second one."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(precompile, "LOOK_S", 0.01)
    told: list[float] = []

    def report(what: str, fraction: float) -> None:
        told.append(fraction)
        if len(told) == 3:
            child.communicate(b"\n")

    kernels = precompile.Precompiled([Group.SAMPLER], child)
    kernels.begin()
    kernels.wait(report)
    assert len(told) >= 3 and told == sorted(set(told)) and imported == ["sampler"]


def test_groups_are_all_files() -> None:
    """Each file that compiles is in one of them."""
    folder = Path(kernels.cpu.__file__).parent
    compiling = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if re.search(
            r"^@(compiled|operation|by_dtype)$|^\w+ = operation_for\(", path.read_text(), re.MULTILINE
        )
    }
    listed = {name for group in Group for name in group.modules}
    assert compiling == listed, "Group of kernels/cpu/groups.py lists the modules with compiled kernels"
    Group.SAMPLER.load()
    assert "kernels.cpu.sampling.choose" in sys.modules


COMPILE = """
import sys
from kernels.cpu.compiler import cache as compiler

place = compiler._address

def named(kernel, name, *statics):
    print(name)
    return place(kernel, name, *statics)

compiler._address = named
from worker.cpu import precompile
precompile.main(*sys.argv[1:])
"""
"""Prints what is on disk then."""
SERVE = """
import sys
from kernels.cpu.compiler import cache as compiler

def refuse(kernel, name, *statics):
    raise AssertionError(f"{name} is compiled late")

names, find = set(sys.stdin.read().splitlines()), compiler._kept
compiler._kept = lambda file: find(file) if file.name.removesuffix(".o") in names else None
compiler.lower = refuse
import torch
from kernels.cpu.instruction_sets import select
from engine_core.startup import initialize_message
from pagewire.ipc.columns import pack_u32
from pagewire.config import EngineConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.v1.generation_pb2 import SamplingParams
from pagewire.config import WorkerConfig
from worker.load import load
from worker.platforms.cpu import CpuPlatform

select(sys.argv[1])
SAMPLINGS = [
    {"temperature": 0.0, "top_p": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1},
    {"temperature": 0.8, "top_p": 1.0, "top_k": 5, "min_p": 0.1},
]
ROWS = pack_u32(range(3))
for quantization in ("none", "int8", "int4"):
    config = EngineConfig(device="cpu", dtype="bfloat16", num_blocks=64, quantization=quantization)
    runner, _ = load(initialize_message(config), CpuPlatform(WorkerConfig(threads=2)))
    rows = [
        worker_pb2.NewRow(
            row=row,
            prompt_len=40,
            token_ids=pack_u32(range(40)),
            blocks=pack_u32(range(4 * row, 4 * row + 4)),
            sampling=SamplingParams(**{"typical_p": 1.0, "repetition_penalty": 1.0, "n": 1, **sampling}),
        )
        for row, sampling in enumerate(SAMPLINGS)
    ]
    for start, count in ((0, 40), (40, 1)):
        columns = dict(rows=ROWS, starts=pack_u32([start] * 3), counts=pack_u32([count] * 3))
        plan = worker_pb2.StepPlan(new_rows=rows, sample_rows=ROWS, sample_sources=ROWS, **columns)
        assert len(runner.execute(plan).token_ids) == 12
        rows = []
print("served")
"""


@pytest.mark.cpu_kernels
def test_nothing_is_compiled_while_serving() -> None:
    """What the process of the first start leaves on disk is all that a worker needs, with packed weights or
    with weights of 8 or 4 bits, for prompts and for outputs, for every kind of sampling that has a kernel.
    What other tests have compiled already is not compiled again; of that, a worker sees no more."""
    chosen = selected_set()
    compact = ["compact"] if chosen is not None and chosen.compact else []
    needed = ["sampler", "model", "bfloat16", "int8", "two_levels", *compact]
    names = run_python("-c", COMPILE, selected_name(), *needed)
    assert "kernels.cpu.sampling.choose" in names
    assert run_python("-c", SERVE, selected_name(), given=names) == "served\n"


def run_python(*words: str, given: str = "", **environment: str) -> str:
    """Returns what it prints."""
    root = Path(__file__).parents[3]
    whole = os.environ | {"PYTHONPATH": str(root)} | environment
    command = [sys.executable, *words]
    run = subprocess.run(command, env=whole, input=given, capture_output=True, text=True, cwd=root)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.cpu_kernels
def test_what_is_compiled_is_on_disk(tmp_path: Path) -> None:
    """Of a small group, by processes that have nothing to begin with."""
    names = run_python("-c", COMPILE, selected_name(), Group.RANKS, XDG_CACHE_HOME=str(tmp_path))
    (folder,) = (tmp_path / "pagewire").iterdir()
    assert {file.name.removesuffix(".o") for file in folder.glob("*.o")} == set(names.splitlines())
    assert names and [note.name for note in folder.glob("*.compiled")] == [f"{Group.RANKS}.compiled"]
