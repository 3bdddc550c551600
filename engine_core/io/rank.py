"""One rank of a worker group, as the engine core sees it."""

from collections import deque
from collections.abc import Collection

from engine_core.io.hang_detector import HangDetector
from engine_core.io.worker_process import SEE_ABOVE, WorkerDied, WorkerProcess
from pagewire.host.proc_stat import read_vitals
from pagewire.host.stack_dump import log_stacks
from pagewire.internal.v1.worker_pb2 import WorkerHello, WorkerMessage


class Rank:
    """One process of a worker: its address, its unread messages, and whether it hangs."""

    def __init__(self, number: int, size: int, child: WorkerProcess | None, hang_timeout: float) -> None:
        """size: ranks of the group. child: None for a process that the engine core has not started."""
        self.number = number
        self.child = child
        self.peer: bytes | None = None
        """Identity of its socket, from its WorkerHello on."""
        self.messages: deque[WorkerMessage] = deque()
        """Received and not yet taken, oldest first."""
        self.hang_detector = HangDetector(hang_timeout)
        self.name = "the worker" if size == 1 else f"rank {number} of the worker"

    def is_greeted_by(self, hello: WorkerHello) -> bool:
        """Returns whether a WorkerHello is from this rank, which has none yet."""
        if self.peer is not None:
            return False
        return hello.rank == self.number if self.child is None else hello.pid == self.child.pid

    def check_alive(self, readable: Collection[int]) -> None:
        """Raises WorkerDied if its process has ended. readable: descriptors, among them that of its end."""
        if self.child is not None and self.child.pidfd in readable:
            raise self.death("")

    def check_progress(self, awake_s: float) -> None:
        """Raises WorkerDied if it hangs, after killing it. awake_s: see HangDetector.look()."""
        vitals = read_vitals(self.child.pid) if self.child is not None else None
        why = self.hang_detector.look(awake_s, vitals)
        if not why:
            return
        name = self.name
        if self.child is not None:
            log_stacks(name.removeprefix("the "), self.child.pid)
            self.child.kill()
            name, why = f"{name} (pid {self.child.pid})", why + "; it was killed"
        todo = "see the lines above; if it was only slow, raise --hang-timeout"
        raise WorkerDied(f"{name} hangs", why, todo)

    def death(self, why: str) -> WorkerDied:
        """Returns the error for a process that has ended. why: what is known from outside."""
        if self.child is None:
            return WorkerDied(f"{self.name} is gone", why, SEE_ABOVE)
        return self.child.cause_of_death(self.name, why)
