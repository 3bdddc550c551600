"""Ranks on two hosts give the bits of one worker, and what happens to a host changes no token.

The second host is a process of this one that talks over the loopback address or, where that is permitted, one
in a network namespace of its own, whose link can be cut."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import yaml
import zmq

from pagewire import Client
from pagewire.host import spawn as process
from pagewire.ipc import transport
from pagewire.ipc.curve import CurveAuthenticator, make_keys, read_engine_key
from pagewire.local_service import Service
from pagewire_client.transport import recovery
from tests.checkpoints import make_checkpoint
from tests.e2e import services
from tests.e2e.test_ranks import HANG_TIMEOUT_S, SIZES, SMALL, answers, stream_all
from tests.e2e.test_tcp import LOOPBACK as LOOPBACK_IN_HEXADECIMAL
from tests.e2e.test_tcp import listening
from tests.free_ports import free_ports

pytestmark = pytest.mark.cpu_kernels
WIDE = {
    "hidden_size": 64,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
}
"""The sums that ranks divide have four leaves."""
LOOPBACK = "127.0.0.1"


def make(folder: Path, **sizes: int) -> Path:
    return make_checkpoint("llama", folder, max_position_embeddings=1024, **sizes)


class Host:
    """`pagewire ranks`, as on another host."""

    def __init__(self, folder: Path, prefix: list[str], *arguments: str) -> None:
        self._command = [*prefix, sys.executable, "-m", "pagewire", "ranks", *arguments]
        self._log = folder / "ranks.log"
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=services.ROOT,
                stdout=log,
                stderr=log,
                preexec_fn=partial(process.die_with, os.getpid(), signal.SIGKILL),
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def ranks(self) -> list[int]:
        return services.processes(self.process.pid).get("worker", [])

    def kill(self) -> None:
        """All at once, as a host that loses its power."""
        for pid in (self.process.pid, *self.ranks):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def replace(self) -> None:
        self.kill()
        self._start()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(services.PATIENCE_S)


@contextlib.contextmanager
def two_hosts(
    model: Path,
    folder: Path,
    size: int,
    *,
    stages: int = 1,
    address: str = LOOPBACK,
    prefix: list[str] | None = None,
    **flags: Any,
) -> Iterator[tuple[Service, Host]]:
    """A service and its second host. size: ranks that share a layer. prefix: of the command of that."""
    engine_key, client_key = make_keys(folder / "keys")
    group = {
        "tensor_parallel_size": size,
        "pipeline_parallel_size": stages,
        "nnodes": 2,
        "master_addr": address,
        "master_port": free_ports(1)[0],
        "trusted_network": address != LOOPBACK,
    }
    options = [f"--{name.replace('_', '-')}={value}" for name, value in group.items() if value is not False]
    options = ["--trusted-network" if each == "--trusted-network=True" else each for each in options]
    hang_timeout = flags.get("hang_timeout", HANG_TIMEOUT_S)
    host = Host(
        folder,
        prefix or [],
        *options,
        f"--curve-key={client_key}",
        "--node-rank=1",
        f"--hang-timeout={hang_timeout}",
    )
    with contextlib.closing(host):
        flags = {"hang_timeout": hang_timeout, "curve_key": str(engine_key), **group, **flags}
        with services.start(model, device="cpu", **flags) as service:
            yield service, host


OF_SIZES = {"bfloat16": SIZES, "float32": WIDE}
"""Of the model in each dtype."""
OfOneWorker = Callable[[str], tuple[Path, list[object]]]


@pytest.fixture(scope="module")
def of_one_worker(tmp_path_factory: pytest.TempPathFactory) -> OfOneWorker:
    """The model of a dtype, and the answers of one worker."""

    @cache
    def made(dtype: str) -> tuple[Path, list[object]]:
        model = make(tmp_path_factory.mktemp("model") / dtype, **OF_SIZES[dtype])
        with services.start(model, device="cpu", dtype=dtype, **SMALL) as service:
            return model, asyncio.run(answers(service.address))

    return made


@pytest.mark.parametrize(
    ("size", "stages", "dtype"),
    [(2, 1, "bfloat16"), (4, 1, "float32"), (1, 2, "bfloat16"), (2, 2, "bfloat16")],
    ids=["1+1", "2+2", "1-then-1", "2-then-2"],
)
def test_two_hosts_have_the_bits_of_one_worker(
    size: int, stages: int, dtype: str, of_one_worker: OfOneWorker, tmp_path: Path
) -> None:
    model, expected = of_one_worker(dtype)
    with two_hosts(model, tmp_path, size, stages=stages, dtype=dtype, **SMALL) as (service, host):
        ranks = [*services.processes(service.pid)["worker"], *host.ranks]
        assert (len(ranks), len(host.ranks)) == (size * stages, size * stages // 2)
        assert asyncio.run(answers(service.address)) == expected
        found = listening(ranks)
        assert found and {address for address, _ in found} <= LOOPBACK_IN_HEXADECIMAL


def test_a_host_with_a_wrong_key_ends_and_says_so(tmp_path: Path) -> None:
    engine_key, client_key = make_keys(tmp_path / "keys")
    _, other_key = make_keys(tmp_path / "others")
    content = yaml.safe_load(other_key.read_text())
    other_key.write_text(
        yaml.safe_dump(content | {"engine": yaml.safe_load(client_key.read_text())["engine"]})
    )
    key, port = read_engine_key(str(engine_key)), free_ports(1)[0]
    arguments = [
        "--tensor-parallel-size=2",
        "--nnodes=2",
        "--node-rank=1",
        f"--master-addr={LOOPBACK}",
        f"--master-port={port}",
        f"--curve-key={other_key}",
    ]
    with zmq.Context() as context:
        authenticator = CurveAuthenticator(context, key)
        socket = transport.bind_router(context, f"tcp://{LOOPBACK}:{port}", key)
        with services.alone(tmp_path, "ranks", *arguments) as host:
            _, errors = host.communicate(timeout=services.PATIENCE_S)
        socket.close(0)
        authenticator.close()
    assert host.returncode == 1
    assert f"why:   tcp://{LOOPBACK}:{port}: it refuses the key of --curve-key\n" in errors


Group = tuple[Service, Host]


@pytest.fixture(scope="module")
def lasting() -> dict[str, Any]:
    """Flags of services whose processes are killed often."""
    return {"resume_timeout": 2 * services.PATIENCE_S, "max_deaths": 99, "max_restart_pause": 0.0}


only_shared = pytest.mark.parametrize("group", [(2, 1)], ids=["shared"], indirect=True)
"""Where it does not matter what a rank computes."""


@pytest.fixture(scope="module", params=[(2, 1), (1, 2)], ids=["shared", "staged"])
def group(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, lasting: dict[str, Any]
) -> Iterator[Group]:
    size, stages = request.param
    folder = tmp_path_factory.mktemp("hosts")
    patience = mock.patch.object(recovery, "PATIENCE_S", 2 * services.PATIENCE_S)
    with patience, two_hosts(make(folder / "model", **SIZES), folder, size, stages=stages, **lasting) as made:
        yield made


@pytest.fixture(scope="module")
def expected(group: Group) -> list[list[int]]:
    return asyncio.run(stream_all(group[0].address))


def check(group: Group, expected: list[list[int]], disturb: Callable[[], None], dead: list[int]) -> None:
    """Streams go on with the same tokens, and processes that belonged to the group have ended."""
    service, _ = group
    with services.all_die(dead):
        assert asyncio.run(stream_all(service.address, disturb)) == expected
    with Client(service.address) as client:
        client.wait_ready(services.PATIENCE_S)
        services.wait_until(lambda: services.is_idle(client))


@pytest.mark.parametrize(
    ("rank", "number"), [(0, signal.SIGSTOP), (1, signal.SIGKILL)], ids=["0-stopped", "1-killed"]
)
def test_a_rank_ends_and_the_group_is_replaced(
    group: Group, expected: list[list[int]], rank: int, number: signal.Signals
) -> None:
    service, host = group
    ranks = [*services.processes(service.pid)["worker"], *host.ranks]
    assert len(ranks) == 2
    check(group, expected, lambda: os.kill(ranks[rank], number), ranks)


@only_shared
def test_a_core_is_killed_and_the_group_is_replaced(group: Group, expected: list[list[int]]) -> None:
    service, host = group
    running = services.processes(service.pid)
    (core,) = running["engine"]
    check(group, expected, lambda: os.kill(core, signal.SIGKILL), [core, *running["worker"], *host.ranks])


@only_shared
def test_a_host_is_gone_and_comes_back(group: Group, expected: list[list[int]]) -> None:
    service, host = group
    check(group, expected, host.replace, [*services.processes(service.pid)["worker"], *host.ranks])


class Link(NamedTuple):
    device: str  # our end
    address: str
    inside: list[str]  # what goes before a command at the other end


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def free_network() -> str:
    """Which 10.207.x no device of this host has: tests that were killed left theirs."""
    taken = ip("-4", "-oneline", "addr")
    return next(network for network in (f"10.207.{i}" for i in range(256)) if f" {network}." not in taken)


@pytest.fixture
def link() -> Iterator[Link]:
    """A network namespace with one link to it."""
    name, ours, theirs = f"pw-{os.getpid()}", f"pwa{os.getpid()}", f"pwb{os.getpid()}"
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("network namespaces need root and the command ip")
    with contextlib.ExitStack() as stack:
        try:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", ours, "type", "veth", "peer", "name", theirs)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        network = free_network()
        ip("link", "set", theirs, "netns", name)
        ip("addr", "add", f"{network}.1/24", "dev", ours)
        ip("link", "set", ours, "up")
        inside = "netns", "exec", name
        ip(*inside, "ip", "addr", "add", f"{network}.2/24", "dev", theirs)
        for device in (theirs, "lo"):
            ip(*inside, "ip", "link", "set", device, "up")
        yield Link(ours, f"{network}.1", ["ip", *inside])


def test_a_link_is_cut_and_mended(link: Link, lasting: dict[str, Any], tmp_path: Path) -> None:
    """Neither side hears of it. Both find out, and with the link the group is whole again."""
    model = make(tmp_path / "model", **SIZES)
    patience = mock.patch.object(recovery, "PATIENCE_S", 2 * services.PATIENCE_S)
    with (
        patience,
        two_hosts(model, tmp_path, 2, address=link.address, prefix=link.inside, **lasting) as (service, host),
    ):
        expected = asyncio.run(stream_all(service.address))
        ranks = [*services.processes(service.pid)["worker"], *host.ranks]

        def cut() -> None:
            ip("link", "set", link.device, "down")
            with services.all_die(ranks):
                """Until then it stays cut."""
            ip("link", "set", link.device, "up")

        check((service, host), expected, cut, ranks)
