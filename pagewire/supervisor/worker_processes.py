"""The worker processes of an engine core, which the supervisor starts for it: so they can outlive it."""

import contextlib
import json
import os
from collections.abc import Sequence

from pagewire.errors import StartupError
from pagewire.host.spawn import KeptWorkers
from pagewire.host.standby import Fork, Process, kill_group, start

_ADDRESS = "--engine="


class WorkerProcess:
    """A worker that runs, or has ended and was not waited for."""

    def __init__(self, arguments: Sequence[str], fork: Fork | None = None) -> None:
        """Starts `pagewire ARGUMENTS`, in a process group of its own, or has a standby fork it. Raises
        OSError."""
        self.address = next(word.removeprefix(_ADDRESS) for word in arguments if word.startswith(_ADDRESS))
        """Where it looks for its engine core."""
        self._process: Process
        with open(os.devnull, "rb") as null:
            self._process, self._status = start(arguments, null.fileno(), fork)
        os.set_blocking(self._status, False)
        self._failure: StartupError | None = None

    @property
    def pid(self) -> int:
        """Its process id, which no other process gets before close()."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Checks without waiting for the process: its engine core reads how it has ended."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def close(self) -> StartupError | None:
        """Kills it with all that it started, if it still runs. Returns the failure that it reported before it
        could connect. Does not wait: a process of many gigabytes takes seconds to give them back, and its
        successor need not."""
        kill_group(self._process, wait=False)
        failure = self.read_failure()
        os.close(self._status)
        return failure

    def read_failure(self) -> StartupError | None:
        """Returns the failure that it has reported before it could connect to its engine core."""
        with contextlib.suppress(BlockingIOError):
            for line in os.read(self._status, 65536).splitlines():
                event = json.loads(line)
                if event["event"] == "failed":
                    self._failure = StartupError(event["what"], event["why"], event["todo"])
        return self._failure


class WorkerProcesses:
    """All workers of one engine core: those that serve, and those that it has not dismissed yet."""

    def __init__(self) -> None:
        self._workers: dict[int, WorkerProcess] = {}

    def start(self, arguments: Sequence[str], fork: Fork | None = None) -> int:
        """Starts a worker and returns its process id. fork: of a standby. Raises OSError."""
        worker = WorkerProcess(arguments, fork)
        self._workers[worker.pid] = worker
        return worker.pid

    def dismiss(self, pid: int) -> StartupError | None:
        """Ends one that the engine core does not need any more. Returns what it reported, see close()."""
        return self._workers.pop(pid).close() if pid in self._workers else None

    def read_failure(self) -> StartupError | None:
        """Returns what one of them has reported, see WorkerProcess.read_failure()."""
        failures = (worker.read_failure() for worker in self._workers.values())
        return next((failure for failure in failures if failure is not None), None)

    def kept(self) -> KeptWorkers | None:
        """Returns the workers that the next engine core may adopt: all of them live, and are one group."""
        addresses = {worker.address for worker in self._workers.values()}
        if len(addresses) != 1 or not all(worker.lives for worker in self._workers.values()):
            return None
        return KeptWorkers(addresses.pop(), tuple(self._workers))

    def take_over(self, others: "WorkerProcesses") -> None:
        """Takes the workers of an engine core that has died."""
        self._workers |= others._workers
        others._workers = {}

    def close(self) -> None:
        while self._workers:
            self._workers.popitem()[1].close()
