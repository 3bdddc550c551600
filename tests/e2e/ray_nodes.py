"""A Ray cluster on this host, in a process of its own: Ray's threads and warnings stay out of tests."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from pagewire.host import spawn as process
from tests.e2e import services

_NODE = {"object_store_memory": 80 << 20}


class RayNodes:
    """A head, which is the node of `pagewire serve`, and others that tests add and remove."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__],
            cwd=services.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=partial(process.die_with, os.getpid(), signal.SIGTERM),
        )
        self.address = self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _ask(self, *words: object) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def add(self, num_cpus: int) -> int:
        """Starts a node. Returns its number."""
        return int(self._ask("add", num_cpus))

    def remove(self, number: int) -> None:
        """Kills a node with all that runs there."""
        assert self._ask("remove", number) == "removed"

    def kill_head(self) -> None:
        """Kills what knows the cluster, and none of its nodes."""
        assert self._ask("kill-head") == "killed"

    @property
    def running(self) -> dict[str, list[int]]:
        """What runs on all nodes, by pagewire command or program."""
        return services.processes(self._process.pid)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.communicate("end\n", timeout=services.PATIENCE_S)
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    nodes = RayNodes()
    with contextlib.closing(nodes):
        yield nodes


def _main() -> None:
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **_NODE}
    )
    print(cluster.address, file=answers, flush=True)
    nodes: list[Any] = []
    for line in sys.stdin:
        match line.split():
            case ["add", cpus]:
                nodes.append(cluster.add_node(num_cpus=int(cpus), **_NODE))
                print(len(nodes) - 1, file=answers, flush=True)
            case ["remove", number]:
                cluster.remove_node(nodes[int(number)], allow_graceful=False)
                print("removed", file=answers, flush=True)
            case ["kill-head"]:
                cluster.head_node.kill_gcs_server()
                print("killed", file=answers, flush=True)
            case ["end"]:
                break
    cluster.shutdown()


if __name__ == "__main__":
    _main()
