"""Steps: rows are kept and checked as by the real runner, time passes, faults strike."""

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from pagewire.v1 import generation_pb2
from pagewire_simulated.backend import SimulatedBackend
from pagewire_simulated.clock import Clock
from pagewire_simulated.platform import SimulatedPlatform
from worker.executor.executor import StepExecutor
from worker.load import load
from worker.step.plan_reader import NO_TOKEN_COLUMN
from worker.step.rows import PlanError

Initialize = Callable[..., worker_pb2.Initialize]


def new_row(row: int = 0, tokens: tuple[int, ...] = (5, 6, 9), **sampling: Any) -> worker_pb2.NewRow:
    return worker_pb2.NewRow(
        row=row,
        token_ids=pack_u32(tokens),
        prompt_len=len(tokens),
        blocks=pack_u32([2 * row, 2 * row + 1]),
        sampling=generation_pb2.SamplingParams(temperature=1, seed=3, **sampling),
    )


def plan(*new_rows: worker_pb2.NewRow, **columns: list[int]) -> worker_pb2.StepPlan:
    """Computes and samples the new rows, unless columns say otherwise."""
    values = {
        "rows": [new.row for new in new_rows],
        "starts": [0] * len(new_rows),
        "counts": [len(new.token_ids) // 4 for new in new_rows],
        "sample_rows": [new.row for new in new_rows],
        "sample_sources": list(range(len(new_rows))),
    }
    packed = {name: pack_u32(ids) for name, ids in (values | columns).items()}
    return worker_pb2.StepPlan(step=4, new_rows=new_rows, **packed)  # type: ignore[arg-type]


def make(initialize: worker_pb2.Initialize, **faults: Any) -> StepExecutor[SimulatedBackend]:
    return load(initialize, SimulatedPlatform(WorkerConfig(**faults)))[0]


BAD_PLANS = {
    "does not have": plan(new_row(), counts=[4]),
    "max_num_batched_tokens": plan(*(new_row(row) for row in range(3))),
    "copied block is out of range": plan(new_row(), copy_sources=[0], copy_targets=[600]),
    "copy_sources and copy_targets": plan(new_row(), copy_sources=[0], copy_targets=[]),
    "a host block is out of range": plan(new_row(), swap_out_blocks=[0], swap_out_host_blocks=[0]),
    "is not in use": plan(new_row(), removed_rows=[2]),
    "a token out of range": plan(new_row(tokens=(1, 320, 2))),
    "row 8 is out of range": plan(new_row(8)),
    "begins with 129 tokens": plan(new_row(tokens=(1,) * 129)),
    "before its last token": plan(new_row(), counts=[2]),
}


@pytest.mark.parametrize("message", BAD_PLANS)
def test_plans_that_do_not_fit(message: str, initialize: Initialize):
    runner = make(initialize(max_num_batched_tokens=8, num_blocks=600))
    with pytest.raises(PlanError, match=message):
        runner.execute(BAD_PLANS[message])


def test_a_row_without_a_token(initialize: Initialize):
    runner = make(initialize())
    hopeless = new_row(1, allowed_token_ids=[4], bad_token_ids=[4])
    result = runner.execute(plan(new_row(0), hopeless))
    first, second = unpack_u32(result.token_ids)
    assert first < 320 and second == NO_TOKEN_COLUMN
    assert (result.step, result.duration_us) == (4, 0)


def test_a_step_may_only_change_things(initialize: Initialize):
    runner = make(initialize(profile="cpu"))
    runner.execute(plan(new_row()))
    result = runner.execute(worker_pb2.StepPlan(step=9, removed_rows=pack_u32([0])))
    assert (result.step, result.token_ids, result.duration_us) == (9, b"", 0)


def test_time_passes_as_the_formula_says(initialize: Initialize):
    """Two layers on a CPU: 36 us of overhead, next to which the small model is nothing. Twice that
    when the worker is slowed down."""
    asleep: list[float] = []
    clock = Clock(now=lambda: 100.0, sleep=asleep.append)
    for factor in (1.0, 2.0):
        platform = SimulatedPlatform(WorkerConfig(fault_slow_factor=factor), clock)
        runner, _ = load(initialize(profile="cpu"), platform)
        result = runner.execute(plan(new_row()))
        assert result.duration_us == pytest.approx(38 * factor, abs=1.5 * factor)
        assert 1e6 * asleep.pop() == pytest.approx(result.duration_us, abs=0.51)


def test_copies_over_the_host_link_take_time(initialize: Initialize):
    """A block has 4 tokens * 2 layers * 2 * 2 heads * 12 numbers of 2 bytes: 25 GB/s take 31 ns for it."""
    command = initialize(profile="cpu", num_blocks=400, swap_space_bytes=1 << 20)
    runner, ready = load(command, SimulatedPlatform(WorkerConfig()))
    assert ready.num_host_blocks == (1 << 20) // 768
    assert ready.swap_us_per_block == pytest.approx(768 / 25e3)
    blocks = pack_u32(range(390))
    out = worker_pb2.StepPlan(swap_out_blocks=blocks, swap_out_host_blocks=blocks)
    back = worker_pb2.StepPlan(swap_in_host_blocks=blocks, swap_in_blocks=blocks)
    assert [runner.execute(plan).duration_us for plan in (out, back)] == [12, 12]


def test_stages_compute_micro_batches_at_the_same_time(initialize: Initialize):
    """Each of two stages takes half of a step. A plan that is no micro-batch waits for those before it, and a
    row for its token."""
    platform = SimulatedPlatform(WorkerConfig(), Clock(now=lambda: 0.0, sleep=lambda seconds: None))
    runner, _ = load(initialize(profile="cpu"), platform)
    runner.backend._stages_busy_until = [0.0, 0.0]

    def follow(row: int, start: int) -> worker_pb2.StepPlan:
        return plan(rows=[row], starts=[start], counts=[1], sample_rows=[row], sample_sources=[0])

    plans = [plan(new_row(0)), plan(new_row(1)), follow(0, 3), follow(1, 3), follow(0, 4)]
    for each in plans:
        each.micro_batch = each is not plans[-1]
        runner.launch(each)
    results = [runner.finish() for _ in plans]
    half = results[0].duration_us / 2
    starts = [result.started_ns / 1e3 / half for result in results]
    assert starts == pytest.approx([0, 1, 2, 3, 5], abs=0.2)
    assert [result.duration_us / half for result in results] == pytest.approx([2] * 5, abs=0.2)


class Struck(Exception):
    """In place of the end of the process."""


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Death and hanging raise Struck."""

    def die(pid: int, signum: int) -> None:
        assert (pid, signum) == (os.getpid(), signal.SIGKILL)
        raise Struck("death")

    def hang() -> None:
        raise Struck("hanging")

    monkeypatch.setattr(os, "kill", die)
    monkeypatch.setattr(signal, "pause", hang)
    monkeypatch.setattr(ctypes, "PyDLL", lambda name: SimpleNamespace(pause=hang))


@pytest.mark.usefixtures("struck")
@pytest.mark.parametrize(
    ("flag", "what"),
    [
        ("fault_die_at_step", "death"),
        ("fault_hang_at_step", "hanging"),
        ("fault_hold_gil_at_step", "hanging"),
    ],
)
def test_faults_at_a_step(flag: str, what: str, initialize: Initialize):
    runner = make(initialize(), **{flag: 2})
    runner.execute(plan(new_row()))
    with pytest.raises(Struck, match=what):
        runner.execute(worker_pb2.StepPlan())


@pytest.mark.usefixtures("struck")
def test_a_poisoned_prompt(initialize: Initialize):
    """The token counts in a prompt, not in output that the sequence already has."""
    runner = make(initialize(), fault_die_on_token=66)
    resumed = new_row(1, (5, 66))
    resumed.prompt_len = 1
    runner.execute(plan(new_row(), resumed))
    with pytest.raises(Struck, match="death"):
        runner.execute(plan(new_row(2, (5, 66))))


@pytest.mark.usefixtures("struck")
def test_a_poisoned_prompt_in_chunks(initialize: Initialize):
    """It kills when the token is computed, or when a row begins that has it behind it."""
    runner = make(initialize(), fault_die_on_token=66)
    runner.execute(plan(new_row(0, (5, 7, 66)), counts=[2], sample_rows=[], sample_sources=[]))
    with pytest.raises(Struck, match="death"):
        runner.execute(worker_pb2.StepPlan(rows=pack_u32([0]), starts=pack_u32([2]), counts=pack_u32([1])))
    with pytest.raises(Struck, match="death"):
        runner.execute(plan(new_row(0, (5, 66, 8, 9)), starts=[3], counts=[1]))


@pytest.mark.usefixtures("struck")
def test_a_request_that_is_fatal_at_its_second_token(initialize: Initialize):
    runner = make(initialize(), fault_die_on_token=66, fault_die_at_output=2)
    runner.execute(plan(new_row(0, (5, 66))))
    runner.execute(worker_pb2.StepPlan(rows=pack_u32([0]), starts=pack_u32([2]), counts=pack_u32([1])))
    with pytest.raises(Struck, match="death"):
        runner.execute(worker_pb2.StepPlan(rows=pack_u32([0]), starts=pack_u32([3]), counts=pack_u32([1])))


@pytest.mark.usefixtures("struck")
def test_chance_decides(initialize: Initialize):
    runner = make(initialize(), fault_die_on_token=66, fault_die_probability=0.0)
    runner.execute(plan(new_row(0, (5, 66))))


def test_the_device_goes_from_step_to_step_on_its_own(initialize: Initialize):
    """A step that is launched while another one runs begins when that ends; a result waits for its step."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    platform = SimulatedPlatform(WorkerConfig(), Clock(now=lambda: now[0], sleep=sleep))
    runner, _ = load(initialize(profile="cpu"), platform)
    assert runner.seconds_left() is None
    runner.launch(plan(new_row()))
    left = runner.seconds_left()
    runner.launch(plan(rows=[0], starts=[3], counts=[1], sample_rows=[0], sample_sources=[0]))
    assert left == runner.seconds_left() and left is not None and left > 0
    first = runner.finish()
    assert now[0] == 100.0 + left and runner.seconds_left()
    second = runner.finish()
    assert (first.started_ns, second.started_ns) == (100 * 10**9, round(1e9 * (100.0 + left)))
    assert runner.seconds_left() is None
    now[0] = 200.0
    runner.launch(plan(rows=[0], starts=[4], counts=[1], sample_rows=[0], sample_sources=[0]))
    assert runner.finish().started_ns == 200 * 10**9, "an idle device begins at once"


def test_a_step_has_no_more_adapters_than_it_may(initialize: Initialize, tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    executor, facts = load(initialize(max_loras=1), SimulatedPlatform(WorkerConfig()))
    assert facts.model.max_adapters_per_step == 1
    rows = []
    for row in range(2):
        (tmp_path / "adapter_model.safetensors").write_bytes(bytes([row]))
        order = worker_pb2.LoadAdapter(number=1, source=str(tmp_path), max_bytes=1)
        rows.append(new_row(row))
        rows[row].adapter.digest = executor.load_adapter(order).result().digest
    executor.execute(plan(rows[0]))
    columns = {"starts": [3, 0], "counts": [1, 3], "sample_rows": [0, 1]}
    with pytest.raises(PlanError, match="2 adapters in a step, more than 1"):
        executor.execute(plan(rows[1], rows=[0, 1], sample_sources=[0, 1], **columns))
