"""Faults around a real device's runner. The simulated device's are in pagewire-simulated."""

import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from worker import fault_injection
from worker.fault_injection import Faults, FaultyRunner
from worker.loop import never
from worker.step.warmup_plans import prefill_plan


class Runner:
    """Steps take 2 ms, by their own account."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self._left: list[int] = []

    def launch(self, plan: worker_pb2.StepPlan, is_interrupted: Callable[[], bool] = never) -> None:
        self.launched.append(plan.step)
        self._left.append(plan.step)

    def compile_grammar(self, grammar: str) -> Future[object]:
        raise AssertionError("no row has a grammar")

    def awaits(self, plan: worker_pb2.StepPlan) -> bool:
        return False

    def seconds_left(self) -> float | None:
        return 0.5 if self._left else None

    def finish(self) -> worker_pb2.StepResult:
        return worker_pb2.StepResult(step=self._left.pop(0), duration_us=2000)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each sleep, which takes no time."""
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_steps_pass_through(slept: list[float]):
    runner = FaultyRunner(inner := Runner(), Faults(WorkerConfig()))
    assert runner.seconds_left() is None
    runner.launch(worker_pb2.StepPlan(step=1))
    runner.launch(worker_pb2.StepPlan(step=2))
    assert runner.seconds_left() == 0.5
    assert [runner.finish().step for _ in range(2)] == [1, 2] and inner.launched == [1, 2]
    assert not slept


def test_a_slow_step_takes_longer_and_says_so(slept: list[float]):
    runner = FaultyRunner(Runner(), Faults(WorkerConfig(fault_slow_factor=2.5)))
    runner.launch(worker_pb2.StepPlan(step=1))
    assert runner.finish().duration_us == 5000
    assert slept == [pytest.approx(0.003)]


class Died(Exception):
    """In place of the end of the process."""


@pytest.mark.parametrize(
    ("config", "fatal"),
    [
        (WorkerConfig(fault_die_at_step=3), 3),
        (WorkerConfig(fault_die_on_token=0), 1),  # which every prompt of these plans has
        (WorkerConfig(fault_die_on_token=7), None),
    ],
)
def test_a_fault_strikes_before_the_launch(
    config: WorkerConfig, fatal: int | None, monkeypatch: pytest.MonkeyPatch
):
    def die() -> None:
        raise Died

    monkeypatch.setattr(fault_injection, "_die", die)
    runner = FaultyRunner(inner := Runner(), Faults(config))
    for step in range(1, 5):
        plan = prefill_plan([2], 4)
        plan.step = step
        if step == fatal:
            with pytest.raises(Died):
                runner.launch(plan)
            break
        runner.launch(plan)
    assert len(inner.launched) == (4 if fatal is None else fatal - 1)
