"""The execute loop: plans in, results out, in order.

A plan is launched when it comes, also while steps before it are still running: a device that computes by
itself then begins it the moment it is free. A result is handed over before anything else is looked at.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from pagewire.internal.v1 import worker_pb2


class StepRunner(Protocol):
    """What executes the plans. Raises what ends the worker."""

    def launch(self, plan: worker_pb2.StepPlan) -> None:
        """Begins a step, behind those that have been launched before."""

    def seconds_left(self) -> float | None:
        """Until the oldest step that was launched is done; 0: it is; None: there is none."""

    def finish(self) -> worker_pb2.StepResult:
        """The result of the oldest step; waits until it is done."""


class BlockingRunner:
    """A device that computes while we wait, such as a CPU: a launched step is done."""

    def __init__(self, execute: Callable[[worker_pb2.StepPlan], worker_pb2.StepResult]) -> None:
        self._execute = execute
        self._results: deque[worker_pb2.StepResult] = deque()

    def launch(self, plan: worker_pb2.StepPlan) -> None:
        """See StepRunner."""
        self._results.append(self._execute(plan))

    def seconds_left(self) -> float | None:
        """See StepRunner."""
        return 0.0 if self._results else None

    def finish(self) -> worker_pb2.StepResult:
        """See StepRunner."""
        return self._results.popleft()


class Commands(Protocol):
    """The connection to the core, as far as the loop needs it."""

    def send(self, message: worker_pb2.WorkerMessage) -> None:
        """Queues a message."""

    def receive(self, seconds: float | None) -> worker_pb2.WorkerCommand:
        """The next command; an empty one when none comes for so many seconds. None: wait without end."""


def execute_steps(commands: Commands, runner: StepRunner) -> None:
    """Until Shutdown."""
    while True:
        left = runner.seconds_left()
        if left == 0:
            commands.send(worker_pb2.WorkerMessage(step_result=runner.finish()))
            continue
        command = commands.receive(left)
        kind = command.WhichOneof("command")
        if kind == "shutdown":
            return
        if kind == "step_plan":
            runner.launch(command.step_plan)
