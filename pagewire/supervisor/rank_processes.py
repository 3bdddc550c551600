"""`pagewire ranks`: starts the ranks of one host, and starts them anew when one of them ends.

Ranks end with their engine core, and with one another. So the end of one is the end of all of this host, and
the next ones look for the next engine core, for as long as it takes.
"""

import contextlib
import logging
import time

from pagewire.config import RanksConfig
from pagewire.errors import StartupError
from pagewire.host.proc_stat import describe_exit, read_exit_code, read_vitals
from pagewire.supervisor.events import STOPPING, Signals
from pagewire.supervisor.restart_slot import FIRST_PAUSE_S, WINDOW_S
from pagewire.supervisor.worker_processes import WorkerProcess

log = logging.getLogger(__name__)

_LOOK_S = 0.25


class RankProcesses:
    """The ranks of this host."""

    def __init__(self, config: RanksConfig) -> None:
        self._config = config
        self._ranks: dict[int, WorkerProcess] = {}
        self._stopped: dict[int, float] = {}  # since when ranks are seen stopped

    def run(self) -> int:
        """Returns 0 after a signal. Raises StartupError for a rank that cannot start."""
        pause = 0.0
        with Signals() as signals, contextlib.ExitStack() as stack:
            stack.callback(self._end)
            while True:
                began = time.monotonic()
                self._start()
                why = self._await_end(signals)
                self._end()
                if not why:
                    return 0
                pause = pause_after(time.monotonic() - began, pause, self._config.max_restart_pause)
                log.warning("%s; the ranks of this host start again in %.1f s", why, pause)
                if signals.wait(pause) & STOPPING:
                    return 0

    def _start(self) -> None:
        """Raises StartupError."""
        numbers = self._config.numbers
        log.info("ranks %s connect to %s", ", ".join(map(str, numbers)), self._config.core_address)
        self._stopped.clear()
        try:
            for number in numbers:
                self._ranks[number] = WorkerProcess(rank_arguments(self._config, number))
        except OSError as error:
            todo = "look at this host's limits on processes, descriptors and memory"
            raise StartupError("cannot start a rank", error.strerror or str(error), todo) from error

    def _await_end(self, signals: Signals) -> str:
        """Returns which rank has ended, and how; "": a signal asks this process to end. Raises StartupError
        for a rank that cannot start."""
        while True:
            if signals.wait(_LOOK_S) & STOPPING:
                return ""
            for number, rank in self._ranks.items():
                lives = rank.lives
                if (failure := rank.read_failure()) is not None:
                    raise failure
                if not lives:
                    code = read_exit_code(rank.pid)
                    return f"rank {number} is gone" + ("" if code is None else f": {describe_exit(code)}")
                if self._hangs(number, rank):
                    return f"rank {number} hangs: it was stopped, and is killed"

    def _hangs(self, number: int, rank: WorkerProcess) -> bool:
        """Returns whether a rank has been stopped for too long."""
        limit, vitals = self._config.hang_timeout, read_vitals(rank.pid)
        if vitals is None or vitals.state != "T":
            self._stopped.pop(number, None)
            return False
        since = self._stopped.setdefault(number, time.monotonic())
        return limit > 0 and time.monotonic() - since >= limit

    def _end(self) -> None:
        while self._ranks:
            self._ranks.popitem()[1].close()


def pause_after(lasted: float, pause: float, longest: float) -> float:
    """Returns the seconds before ranks start again, at most `longest`. lasted: seconds for which they ran.
    pause: the last one."""
    return 0.0 if lasted >= WINDOW_S else min(2 * pause or FIRST_PAUSE_S, longest)


def rank_arguments(config: RanksConfig, number: int) -> list[str]:
    """Returns the command line of a rank."""
    return [
        "worker",
        f"--engine={config.core_address}",
        f"--curve-key={config.curve_key}",
        f"--rank={number}",
        f"--master-addr={config.master_addr}",
        f"--group-size={config.num_ranks}",
        f"--threads={config.threads}",
        f"--process-name=rank-{number}",
        f"--log-level={config.log_level}",
        f"--log-format={config.log_format}",
    ]
