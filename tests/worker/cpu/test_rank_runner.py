"""What a rank does around each step."""

from collections.abc import Callable
from unittest import mock

import pytest

from pagewire.internal.v1.worker_pb2 import StepPlan, StepResult, WorkerCommand, WorkerMessage
from worker.channel import EngineGone
from worker.cpu.rank_memory import Ranks
from worker.cpu.rank_runner import RankRunner, of_rank
from worker.loop import StepRunner, never

RESULT = StepResult(step=3, token_ids=b"1234", started_ns=5, duration_us=6, forward_us=7, sample_counts=b"x")


def make(rank: int) -> tuple[RankRunner, mock.Mock, mock.Mock]:
    """The runner of a rank, what it surrounds, and the other ranks."""
    runner, ranks = mock.Mock(StepRunner), mock.Mock(Ranks)
    ranks.rank = rank
    runner.finish.return_value = RESULT
    return RankRunner(runner, ranks), runner, ranks


def test_the_core_is_told_what_rank_0_has_sampled():
    first, other = make(0)[0], make(1)[0]
    assert first.finish() == RESULT
    assert other.finish() == StepResult(step=3, started_ns=5, duration_us=6, forward_us=7)


def test_a_step_begins_when_all_ranks_have_it():
    order: list[str] = []
    made, runner, ranks = make(0)

    def note(what: str) -> Callable[..., None]:
        return lambda *arguments, **options: order.append(what)

    ranks.begin_step.side_effect, runner.launch.side_effect = note("agreed"), note("launched")
    made.launch(StepPlan(step=1), never)
    assert order == ["agreed", "launched"]
    ranks.begin_step.side_effect = EngineGone
    with pytest.raises(EngineGone):
        made.launch(StepPlan(step=2))
    assert order == ["agreed", "launched"] and not ranks.abort.called


class Arriving:
    """Commands that have arrived, and the end of their core."""

    def __init__(self, steps: int) -> None:
        self.commands = [WorkerCommand(step_plan=StepPlan(step=step)) for step in range(steps)]

    def send(self, message: WorkerMessage) -> None:
        raise AssertionError("nothing is sent")

    def has_command(self) -> bool:
        return True

    def receive(self, seconds: float | None) -> WorkerCommand:
        if not self.commands:
            raise EngineGone
        return self.commands.pop(0)


def test_plans_are_announced_as_soon_as_they_arrive():
    """And those that have arrived are taken when their core is gone: others may begin them."""
    made, _, ranks = make(0)
    commands = made.announcing(Arriving(3))
    assert commands.receive(None).step_plan.step == 0
    assert ranks.announce_plan.call_count == 3 and commands.has_command()
    assert [commands.receive(0.0).step_plan.step for _ in range(2)] == [1, 2]
    with pytest.raises(EngineGone):
        commands.receive(0.0)


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_burst_ends_where_rank_0_is_interrupted(interrupted: bool):
    made, runner, ranks = make(1)
    ranks.of_first.return_value = int(interrupted)
    made.launch(StepPlan(), lambda: not interrupted)
    _, is_interrupted = runner.launch.call_args.args
    assert is_interrupted() is interrupted
    ranks.of_first.assert_called_once_with(not interrupted)


def test_a_step_that_fails_on_one_rank_ends_the_group():
    made, runner, ranks = make(1)
    runner.launch.side_effect = MemoryError
    with pytest.raises(MemoryError):
        made.launch(StepPlan())
    ranks.abort.assert_called_once_with()


def test_a_worker_that_is_alone_waits_for_no_rank():
    runner, ranks = mock.Mock(StepRunner), mock.Mock(Ranks)
    assert of_rank(runner, None) is runner
    assert isinstance(of_rank(runner, ranks), RankRunner) and ranks.on_wait is None


def test_ranks_leave_a_core_together():
    made, runner, ranks = make(1)
    made.abandon()
    runner.abandon.assert_called_once_with()
    ranks.leave_core.assert_called_once_with()
