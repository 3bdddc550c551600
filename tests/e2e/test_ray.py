"""Ranks that Ray starts on other nodes have the bits of one worker, and what ends them changes no token.

All nodes are processes of this host, at the address that Ray finds for it."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pagewire import Client
from pagewire.local_service import Service
from pagewire_client.transport import recovery
from tests.checkpoints import make_checkpoint
from tests.e2e import services
from tests.e2e.ray_nodes import RayNodes
from tests.e2e.test_ranks import HANG_TIMEOUT_S, SIZES, SMALL, answers, stream_all
from tests.free_ports import free_ports

pytestmark = [
    pytest.mark.cpu_kernels,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed"),
]
LASTING: dict[str, Any] = {
    "resume_timeout": 2 * services.PATIENCE_S,
    "max_deaths": 99,
    "max_restart_pause": 0.5,
}
"""Of services whose processes are killed often."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """With one node beside that of the service, which one rank fills."""
    with closing(RayNodes()) as nodes:
        nodes.add(1)
        yield nodes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("model"), max_position_embeddings=1024, **SIZES)


def group_flags(nodes: RayNodes) -> dict[str, Any]:
    return {
        "device": "cpu",
        "tensor_parallel_size": 2,
        "nnodes": 2,
        "master_port": free_ports(1)[0],
        "launcher": "ray",
        "ray_address": nodes.address,
        "trusted_network": True,
        "hang_timeout": HANG_TIMEOUT_S,
    }


def ranks_of_ray(nodes: RayNodes) -> list[int]:
    """The command and its rank, of the other node."""
    running = nodes.running
    return running.get("ranks", []) + running.get("worker", [])


def key_of(pid: int) -> Path:
    """What a service has made for its ranks."""
    (core,) = services.processes(pid)["engine"]
    (key,) = (word.partition("=")[2] for word in services.words_of(core) if word.startswith("--curve-key="))
    return Path(key)


@pytest.fixture(scope="module")
def service(model: Path, nodes: RayNodes) -> Iterator[Service]:
    patience = mock.patch.object(recovery, "PATIENCE_S", 2 * services.PATIENCE_S)
    with patience, services.start(model, **group_flags(nodes), **LASTING, **SMALL) as service:
        yield service


def test_ranks_of_ray_have_the_bits_of_one_worker(model: Path, nodes: RayNodes, service: Service):
    with services.start(model, device="cpu", **SMALL) as one:
        expected = asyncio.run(answers(one.address))
    assert len(ranks_of_ray(nodes)) == 2 and len(services.processes(service.pid)["worker"]) == 1
    assert asyncio.run(answers(service.address)) == expected
    assert key_of(service.pid).stat().st_mode & 0o077 == 0


@pytest.fixture(scope="module")
def expected(service: Service) -> list[list[int]]:
    return asyncio.run(stream_all(service.address))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def actor(nodes: RayNodes) -> int:
    (command,) = nodes.running["ranks"]
    return parent(command)


def launcher(service: Service) -> int:
    """The process of the service that holds the connection to Ray."""
    (pid,) = services.processes(service.pid)["ranks"]
    return pid


@pytest.mark.parametrize("killed", ["command", "actor", "launcher"])
def test_what_is_killed_is_started_again(
    service: Service, nodes: RayNodes, expected: list[list[int]], killed: str
):
    """And streams go on with the same tokens. tests/e2e/test_hosts.py kills ranks."""
    victims: dict[str, Callable[[], int]] = {
        "command": lambda: nodes.running["ranks"][0],
        "actor": lambda: actor(nodes),
        "launcher": lambda: launcher(service),
    }
    dead = [victims[killed](), *nodes.running["worker"]]
    with services.all_die(dead):
        assert asyncio.run(stream_all(service.address, lambda: os.kill(dead[0], signal.SIGKILL))) == expected
    with Client(service.address) as client:
        client.wait_ready(services.PATIENCE_S)
        services.wait_until(lambda: services.is_idle(client))
    assert len(ranks_of_ray(nodes)) == 2


def test_a_node_is_gone_and_another_one_comes(
    nodes: RayNodes, model: Path, service: Service, expected: list[list[int]]
):
    """The service waits for it for as long as it takes."""
    dead = ranks_of_ray(nodes)

    def replace() -> None:
        nodes.remove(0)
        nodes.add(1)

    with services.all_die(dead):
        assert asyncio.run(stream_all(service.address, replace)) == expected
    assert not set(dead) & set(ranks_of_ray(nodes))


def test_the_log_says_what_a_cluster_lacks(model: Path, nodes: RayNodes, service: Service, tmp_path: Path):
    """And nothing is left behind when a service is killed while it serves, nor when one ends, nor its key."""
    with services.all_die(ranks_of_ray(nodes)):
        os.kill(service.pid, signal.SIGKILL)
    flags = group_flags(nodes) | {"threads": 2}
    del flags["trusted_network"]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    with closing(services.Serve(tmp_path, str(model), "--trusted-network", *options)) as waiting:
        assert waiting.process.stderr is not None
        line = next(line for line in waiting.process.stderr if "waiting for Ray" in line)
        assert "1 other nodes with 2 free CPUs each; the cluster has " in line and " with 1 CPUs; " in line
        nodes.add(2)
        waiting.wait_ready()
        ranks, key = ranks_of_ray(nodes), key_of(waiting.process.pid)
        assert len(ranks) == 2 and key.exists()
        with services.all_die(ranks):
            waiting.process.terminate()
            assert waiting.end()[0] == 0
        assert not key.exists()


def test_the_death_of_the_head_ends_the_service_in_one_line(model: Path, nodes: RayNodes, tmp_path: Path):
    """Ray itself says nothing for a minute. The launcher's next start finds no cluster. The last test: none
    can use these nodes after it."""
    nodes.add(1)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in group_flags(nodes).items()]
    options.remove("--trusted-network=True")
    with closing(services.Serve(tmp_path, str(model), "--trusted-network", *options)) as service:
        service.wait_ready()
        nodes.kill_head()
        code, error = service.end()
    assert code == 1 and "Traceback" not in error
    assert f"cannot use the Ray cluster: Ray's head at {nodes.address} does not answer: " in error
    assert error.splitlines()[-3].startswith("error: cannot use the Ray cluster")
