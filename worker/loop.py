"""The execute loop: plans in, results out, in order.

A plan is launched when it arrives, also while earlier steps are still running: a device that computes by
itself then begins it as soon as it is free. A result that is ready is sent before anything else is done.
Grammars are compiled, adapters loaded and blocks read in threads meanwhile; the core is told between steps
which ones are done.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from pagewire.internal.v1 import worker_pb2
from worker.cache_contents import CacheContents
from worker.kv_transfer.transfer import BlockTransfer


class RankGone(Exception):
    """Another rank of the tensor-parallel group has ended, or has failed: this one cannot continue."""


class Compilation(Protocol):
    """A grammar that is being compiled."""

    def done(self) -> bool:
        """Returns whether it is compiled, or cannot be."""


def never() -> bool:
    """Nothing interrupts a burst."""
    return False


class StepRunner(Protocol):
    """What executes the plans: worker.executor.executor. Raises what ends the worker."""

    def launch(self, plan: worker_pb2.StepPlan, is_interrupted: Callable[[], bool] = never) -> None:
        """Launches a plan, behind those launched before. is_interrupted: asked between the steps of a burst,
        whether it is to take no further one."""

    def seconds_left(self) -> float | None:
        """Returns seconds until the oldest launched step may be done; 0: finish() is due; None: no step."""

    def finish(self) -> worker_pb2.StepResult:
        """Returns the result of the oldest step; blocks until it is done."""

    def compile_grammar(self, grammar: str) -> Compilation:
        """Compiles a grammar that rows will have, in a thread."""

    def load_adapter(self, order: worker_pb2.LoadAdapter) -> "Future[worker_pb2.AdapterLoaded]":
        """Loads an adapter that rows will have, in a thread. Returns the answer to come."""

    def drop_adapter(self, digest: bytes) -> None:
        """Forgets an adapter that no later plan has."""

    @property
    def held_adapters(self) -> Sequence[worker_pb2.AdapterLoaded]:
        """Those that are loaded, for a core that adopts the worker (Ready.adapters)."""

    @property
    def transfer(self) -> BlockTransfer | None:
        """What reads blocks of other workers; None: nothing does, and no ReadBlocks comes."""

    def awaits(self, plan: worker_pb2.StepPlan) -> bool:
        """Returns whether the oldest launched step must be finished before this plan is launched."""

    def abandon(self) -> None:
        """Finishes all launched steps, whose results nothing wants any more, then removes all rows."""


class Commands(Protocol):
    """The connection to the core, as far as the loop needs it."""

    def send(self, message: worker_pb2.WorkerMessage) -> None:
        """Queues a message."""

    def receive(self, seconds: float | None) -> worker_pb2.WorkerCommand:
        """Returns the next command; an empty one when none arrives in time. None: no time limit."""

    def has_command(self) -> bool:
        """Returns whether receive() would not wait."""


LOOK_S = 0.002
"""Seconds between two looks at what threads prepare, while nothing else happens."""


def execute_steps(commands: Commands, runner: StepRunner, cached: CacheContents | None = None) -> None:
    """Executes plans until Shutdown. cached: takes in what the core says of its prefix cache."""
    cached = cached or CacheContents(b"")
    compiling: dict[int, Compilation] = {}  # by number
    loading: list[Future[worker_pb2.AdapterLoaded]] = []
    reading: list[Future[worker_pb2.BlocksRead]] = []
    while True:
        left = runner.seconds_left()
        if left == 0:
            commands.send(worker_pb2.WorkerMessage(step_result=runner.finish()))
            continue
        for number in [number for number, grammar in compiling.items() if grammar.done()]:
            del compiling[number]
            compiled = worker_pb2.GrammarCompiled(number=number)
            commands.send(worker_pb2.WorkerMessage(grammar_compiled=compiled))
        for loaded in [each for each in loading if each.done()]:
            loading.remove(loaded)
            commands.send(worker_pb2.WorkerMessage(adapter_loaded=loaded.result()))
        for read in [each for each in reading if each.done()]:
            reading.remove(read)
            commands.send(worker_pb2.WorkerMessage(blocks_read=read.result()))
        if compiling or loading or reading:
            left = LOOK_S if left is None else min(left, LOOK_S)
        command = commands.receive(left)
        kind = command.WhichOneof("command")
        if kind == "shutdown":
            return
        if kind == "step_plan":
            while runner.awaits(command.step_plan):
                commands.send(worker_pb2.WorkerMessage(step_result=runner.finish()))
            runner.launch(command.step_plan, commands.has_command)  # which may drop the plan: EngineGone
            if command.step_plan.HasField("kept_changes"):
                cached.apply(command.step_plan.kept_changes)
        elif kind == "kept_changes":
            cached.apply(command.kept_changes)
        elif kind == "compile_grammar":
            order = command.compile_grammar
            compiling[order.number] = runner.compile_grammar(order.grammar)
        elif kind == "load_adapter":
            loading.append(runner.load_adapter(command.load_adapter))
        elif kind == "drop_adapter":
            runner.drop_adapter(command.drop_adapter.digest)
        elif kind == "read_blocks" and runner.transfer is not None:
            reading.append(runner.transfer.read(command.read_blocks))
        elif kind == "stop_reading" and runner.transfer is not None:
            runner.transfer.stop(command.stop_reading.number)
