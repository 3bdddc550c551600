"""Looks for the Ray cluster before a service starts, in a process that ends again: Ray's threads would stay
in the supervisor, which forks.

The answer is one line of JSON on standard output: the address of this host, or what is wrong.
"""

import json
import os
import subprocess
import sys

from pagewire.errors import StartupError
from pagewire.host import spawn as process
from pagewire.launchers import WHAT

_PATIENCE_S = 60.0


def find_host(address: str) -> str:
    """Returns the IPv4 address of this host in the Ray cluster at `address`. Raises StartupError."""
    command = [sys.executable, "-P", "-m", __name__, address]
    try:
        run = subprocess.run(
            command, env=process.child_environment(), capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired as error:
        why = f"{address} did not answer within {_PATIENCE_S:.0f} s"
        raise StartupError(WHAT, why, "see: ray status") from error
    try:
        answer = json.loads(run.stdout)
    except ValueError as error:
        lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
        raise StartupError(WHAT, f"Ray ends this process: {lines[-1]}", "see: ray status") from error
    if "host" not in answer:
        raise StartupError(**answer)
    return str(answer["host"])


def _main(address: str) -> None:
    process.die_with_parent()
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Ray writes there
    from pagewire.launchers.ray_cluster import RayCluster

    try:
        cluster = RayCluster(address)
        answer = {"host": cluster.this_host}
        cluster.close()
    except StartupError as error:
        answer = {"what": error.what, "why": error.why, "todo": error.todo}
    os.write(answers, json.dumps(answer).encode())


if __name__ == "__main__":
    _main(sys.argv[1])
