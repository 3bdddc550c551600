"""Deliberate failures, for tests of the processes that depend on a worker. All are off by default.

A simulated device calls strike() itself, before it does anything for a plan; FaultyRunner does the same
around a real device.
"""

import ctypes
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from worker.cpu.rank_runner import RankRunner
from worker.kv_transfer.transfer import BlockTransfer
from worker.loop import Commands, Compilation, StepRunner, never
from worker.step.rows import column

logger = logging.getLogger(__name__)


class Faults:
    """The faults that the flags of a worker request."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._num_steps = 0
        self._poisoned: dict[int, int] = {}  # rows whose prompt holds the trigger -> the fatal position

    @property
    def slow_factor(self) -> float:
        """Factor by which steps take longer."""
        return self._config.fault_slow_factor

    def strike(self, plan: worker_pb2.StepPlan) -> None:
        """Applies the faults due at this plan. Call it before the plan is executed. May not return."""
        config = self._config
        self._num_steps += 1
        if self._num_steps == config.fault_die_at_step or self._is_fatal(plan):
            _die()
        if self._num_steps == config.fault_hang_at_step:
            _hang()
        if self._num_steps == config.fault_hold_gil_at_step:
            _hold_gil()

    def _is_fatal(self, plan: worker_pb2.StepPlan) -> bool:
        """Returns whether a row with the trigger computes its fatal position, or begins behind it."""
        config = self._config
        if config.fault_die_on_token is None:
            return False
        begun = self._note_rows(plan, config.fault_die_on_token)
        fatal = any(
            self._poisoned.get(row, end) < end and (row in begun or start <= self._poisoned[row])
            for row, start, end in zip(
                column(plan.rows).tolist(),
                column(plan.starts).tolist(),
                (column(plan.starts) + column(plan.counts)).tolist(),
                strict=True,
            )
        )
        return fatal and random.random() < config.fault_die_probability

    def _note_rows(self, plan: worker_pb2.StepPlan, trigger: int) -> set[int]:
        """Updates the rows that have the trigger in their prompt; returns those that begin."""
        for row in column(plan.removed_rows).tolist():
            self._poisoned.pop(row, None)
        begun = set[int]()
        for new in plan.new_rows:
            found = np.flatnonzero(column(new.token_ids)[: new.prompt_len] == trigger)
            if found.size:
                made = self._config.fault_die_at_output
                self._poisoned[new.row] = new.prompt_len + made - 1 if made else int(found[0])
                begun.add(new.row)
        for fork in plan.forks:
            if fork.source_row in self._poisoned:
                self._poisoned[fork.row] = self._poisoned[fork.source_row]
        return begun


class FaultyRunner:
    """A StepRunner around a real device's: strikes before each launch, and slows steps by sleeping."""

    def __init__(self, runner: StepRunner, faults: Faults) -> None:
        self._runner = runner
        self._faults = faults

    def launch(self, plan: worker_pb2.StepPlan, is_interrupted: Callable[[], bool] = never) -> None:
        self._faults.strike(plan)
        self._runner.launch(plan, is_interrupted)

    def awaits(self, plan: worker_pb2.StepPlan) -> bool:
        return self._runner.awaits(plan)

    def announcing(self, commands: Commands) -> Commands:
        """Returns the commands of one core, of which other ranks are told, if there are any."""
        return self._runner.announcing(commands) if isinstance(self._runner, RankRunner) else commands

    def load_adapter(self, order: worker_pb2.LoadAdapter) -> "Future[worker_pb2.AdapterLoaded]":
        return self._runner.load_adapter(order)

    def drop_adapter(self, digest: bytes) -> None:
        self._runner.drop_adapter(digest)

    @property
    def held_adapters(self) -> Sequence[worker_pb2.AdapterLoaded]:
        return self._runner.held_adapters

    def compile_grammar(self, grammar: str) -> Compilation:
        return self._runner.compile_grammar(grammar)

    @property
    def transfer(self) -> BlockTransfer | None:
        return self._runner.transfer

    def abandon(self) -> None:
        self._runner.abandon()

    def seconds_left(self) -> float | None:
        return self._runner.seconds_left()

    def finish(self) -> worker_pb2.StepResult:
        """Sleeps for what the slow factor adds."""
        result = self._runner.finish()
        extra_us = int(result.duration_us * (self._faults.slow_factor - 1))
        if extra_us > 0:
            time.sleep(extra_us / 1e6)
            result.duration_us += extra_us
        return result


def _die() -> None:
    """Kills the process without a last message, as the kernel does when memory runs out."""
    logger.warning("dying on purpose")
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    """Blocks until a signal ends the process."""
    logger.warning("hanging on purpose")
    while True:
        signal.pause()


def _hold_gil() -> None:
    """Blocks with the GIL held, as native code that never returns: no other Python thread runs."""
    logger.warning("hanging on purpose, with the GIL")
    while True:
        ctypes.PyDLL(None).pause()
