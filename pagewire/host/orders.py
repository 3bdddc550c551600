"""What a supervisor writes to the standard input of an engine core, a JSON line for each order:

{"order": "activate", "after_kill": true, "address": "ipc:///folder/workers.ipc", "pids": [123]}
{"order": "worker", "pid": 124, "why": ""}
{"order": "worker", "pid": 0, "why": "no more processes"}

The second and third answer a request for a worker process (pagewire.host.spawn.Status.request_worker).
"""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeptWorkers:
    """The living ranks of an engine core that was killed."""

    address: str
    """Where they look for the next core."""
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Activation:
    """Lets an engine core serve."""

    after_kill: bool = False
    """The process whose place it takes, or the worker of that, was killed by SIGKILL."""
    kept: KeptWorkers | None = None
    """To be adopted, if they answer."""

    def line(self) -> bytes:
        """Returns what is written."""
        order: dict[str, object] = {"order": "activate", "after_kill": self.after_kill}
        if self.kept is not None:
            order |= {"address": self.kept.address, "pids": self.kept.pids}
        return _line(order)


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """Answers a request for a worker process."""

    pid: int
    """0: the system could not start one."""
    why: str = ""
    """It could not."""

    def line(self) -> bytes:
        """Returns what is written."""
        return _line({"order": "worker", "pid": self.pid, "why": self.why})


def read_order(line: bytes) -> Activation | WorkerStarted:
    """Returns the order of one line."""
    order = json.loads(line)
    if order["order"] == "worker":
        return WorkerStarted(order["pid"], order["why"])
    kept = KeptWorkers(order["address"], tuple(order["pids"])) if "pids" in order else None
    return Activation(order["after_kill"], kept)


def _line(order: dict[str, object]) -> bytes:
    return json.dumps(order).encode() + b"\n"
