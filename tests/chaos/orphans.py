"""Does anything outlive its parent? python -m tests.chaos.orphans --starts 100.

A service starts; in turn one process of its tree is killed, and in every other round while all of them are
stopped. The kernel says how long it takes until all that it had started is gone. Then the supervisor is
killed, and the next service starts.
"""

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from tests.chaos.chaos import DEVICES
from tests.e2e import services
from tests.patience import PATIENCE_S

VICTIMS = ("serve", "engine", "worker", "frontend")


def descendants(pid: int) -> list[int]:
    """All living processes below this one."""
    return [child for children in services.processes(pid).values() for child in children]


def seconds_until_gone(victim: int) -> float:
    """Kills a process; seconds until it and all below it are gone. Raises TimeoutError."""
    with ExitStack() as stack:
        watched = []
        for pid in (victim, *descendants(victim)):
            watched.append(os.pidfd_open(pid))
            stack.callback(os.close, watched[-1])
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        for descriptor in watched:
            if not select.select([descriptor], [], [], PATIENCE_S)[0]:
                raise TimeoutError("a process has outlived its parent")
        return time.monotonic() - began


def one_start(number: int) -> list[float]:
    """Of one service: how long it took to be rid of one process of it, and then of all."""
    with services.start(frontends=2, **DEVICES["simulated"] | {"no_standby": True}) as service:
        name = VICTIMS[number % len(VICTIMS)]
        found = {"serve": [service.pid], **services.processes(service.pid)}[name]
        stopped = descendants(service.pid) if number // len(VICTIMS) % 2 else []
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)  # a stopped process dies all the same
        times = [seconds_until_gone(found[0])]
        if name != "serve":
            times.append(seconds_until_gone(service.pid))
        return times


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 when a process outlives its parent."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.orphans", description=__doc__)
    parser.add_argument("--starts", type=int, default=24)
    options = parser.parse_args(arguments)
    times: list[float] = []
    for number in range(options.starts):
        times += one_start(number)
    times.sort()
    place = min(int(0.99 * len(times)), len(times) - 1)
    print(f"{options.starts} starts, {len(times)} kills: no process outlived its parent")
    print(f"seconds: p50 {times[len(times) // 2]:.3f}, p99 {times[place]:.3f}, max {times[-1]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
