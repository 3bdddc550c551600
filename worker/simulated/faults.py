"""Ways to fail on purpose, for tests of whoever depends on a worker. All are off by default."""

import logging
import os
import signal

import numpy as np

from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from worker.rows import column

logger = logging.getLogger(__name__)


class Faults:
    """What a worker's flags ask for."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._num_steps = 0

    @property
    def slow_factor(self) -> float:
        """Of the time that a step takes."""
        return self._config.fault_slow_factor

    def strike(self, plan: worker_pb2.StepPlan) -> None:
        """Call it when a plan has come and nothing of it is done. May not return."""
        self._num_steps += 1
        if self._num_steps == self._config.fault_die_at_step or self._is_poisoned(plan):
            _die()
        if self._num_steps == self._config.fault_hang_at_step:
            _hang()

    def _is_poisoned(self, plan: worker_pb2.StepPlan) -> bool:
        """Whether a row begins with a prompt that holds the trigger."""
        trigger = self._config.fault_die_on_token
        if trigger is None:
            return False
        return any(np.any(column(new.token_ids)[: new.prompt_len] == trigger) for new in plan.new_rows)


def _die() -> None:
    """As when memory runs out: no last words."""
    logger.warning("dying on purpose")
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    """Until a signal ends the process."""
    logger.warning("hanging on purpose")
    while True:
        signal.pause()
