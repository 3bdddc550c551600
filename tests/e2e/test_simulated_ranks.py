"""Groups of ranks without a model: whatever happens to their processes, each stream gets the tokens of the
formula, none twice."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from pagewire import Client
from pagewire.local_service import Service
from pagewire.v1 import admin_pb2, admin_pb2_grpc
from pagewire_simulated.tokens import token_reference
from tests.e2e import services
from tests.e2e.services import Serve
from tests.e2e.test_hang import FLAGS, SLOWLY, run_with
from tests.e2e.test_orphans import members, wait_until_nothing_is_left
from tests.e2e.test_simulated import CANDIDATES, without_weights

HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
WORDS = ("--device=simulated", "--profile=instant", "--log-level=error", "--tensor-parallel-size=2")
STOPS_RANK_1 = """
import os, signal, sys
if "--rank=1" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
"""Python runs this in each process that starts with its folder on its path, before anything of ours."""
FILLS_SHM = 'mount -t tmpfs -o size=64k none /dev/shm && head -c 64k /dev/zero >/dev/shm/full && exec "$@"'
IN_FULL_SHM = ("unshare", "--mount", "sh", "-c", FILLS_SHM, "sh")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The heads of the demo model cannot be divided among four ranks."""
    made = without_weights(tmp_path_factory.mktemp("ranks"))
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, **HEADS}))
    return made


@pytest.fixture(scope="module", params=[(2, 1), (2, 2)], ids=lambda shape: "{}x{}".format(*shape))
def group(request: pytest.FixtureRequest, folder: Path) -> Iterator[Service]:
    """Ranks that share layers, and stages of these."""
    tensor, stages = request.param
    shape = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    with services.start(folder, max_deaths=99, **shape, **FLAGS, **SLOWLY) as service:
        assert sorted(ranks_of(service)) == [*range(tensor * stages)]
        yield service


def ranks_of(service: Service) -> dict[int, int]:
    """The process of each rank."""
    words = {
        pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in services.processes(service.pid)["worker"]
    }
    return {int(text.partition("--rank=")[2].partition("\0")[0]): pid for pid, text in words.items()}


def strike(service: Service, pids: Sequence[int], number: signal.Signals = signal.SIGKILL) -> None:
    """While streams run, which must not notice. Returns when all is as before."""

    async def kill() -> None:
        for pid in pids:
            os.kill(pid, number)

    asyncio.run(run_with(service, kill))
    with Client(service.address) as client:
        client.wait_ready(services.PATIENCE_S)
        services.wait_until(lambda: services.is_idle(client))


def test_what_is_said_of_a_group(group: Service):
    """No rank needs torch, and each has a part of what one worker would have."""
    ranks = ranks_of(group)
    assert group.facts["ranks"] == len(ranks)
    with grpc.insecure_channel(group.address) as channel:
        info = admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(admin_pb2.GetServerInfoRequest())
    assert info.parallelism.tensor * info.parallelism.pipeline == len(ranks)
    assert info.config["device"] == "simulated"
    for pid in ranks.values():
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "numpy" in maps and "torch" not in maps and "llvmlite" not in maps


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_end_of_any_rank_is_that_of_the_group(group: Service, number: signal.Signals):
    """Any is killed; the first and the last are stopped."""
    last = len(ranks_of(group)) - 1
    for rank in range(last + 1) if number == signal.SIGKILL else (0, last):
        ranks = ranks_of(group)
        with services.all_die([*ranks.values(), *services.processes(group.pid)["engine"]]):
            strike(group, [ranks[rank]], number)


def test_the_next_core_adopts_all_ranks(group: Service):
    ranks = ranks_of(group)
    for _ in range(2):
        cores = services.processes(group.pid)["engine"]
        with services.all_die(cores):
            strike(group, cores)
    assert ranks_of(group) == ranks


@pytest.mark.parametrize("count", [1, None], ids=["one-rank", "all-ranks"])
def test_a_core_and_ranks_end_together(group: Service, count: int | None):
    ranks, cores = ranks_of(group), services.processes(group.pid)["engine"]
    with services.all_die([*ranks.values(), *cores]):
        strike(group, [*cores, *list(ranks.values())[-(count or len(ranks)) :]])


def test_nothing_survives_the_launcher(serve: Callable[..., Serve], folder: Path):
    service = serve(str(folder), *WORDS)
    service.wait_ready()
    assert list(members(service.runtime).values()).count("worker") == 2
    service.process.kill()
    wait_until_nothing_is_left(service.runtime)


def test_a_rank_that_never_starts_is_named(
    serve: Callable[..., Serve], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "sitecustomize.py").write_text(STOPS_RANK_1)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    service = serve(str(folder), *WORDS, "--hang-timeout=1.5")
    stopped: list[int] = []

    def find() -> bool:
        stopped.extend(services.processes(service.process.pid).get("worker", [])[1:2])
        return bool(stopped)

    services.wait_until(find)
    code, text = service.end()
    assert code == 1
    assert f"rank 1 of the worker (pid {stopped[0]}) hangs" in text and "it was stopped" in text
    assert list(service.runtime.iterdir()) == []


def test_a_full_dev_shm_does_not_matter(serve: Callable[..., Serve], folder: Path):
    """What ranks share is a file of no file system that is mounted."""
    if shutil.which("unshare") is None or subprocess.run([*IN_FULL_SHM, "true"], check=False).returncode:
        pytest.skip("this user cannot mount another /dev/shm")
    service = serve(str(folder), *WORDS, inside=IN_FULL_SHM)
    with Client(service.wait_ready()["address"]) as client:
        answer = client.generate([20, 30], temperature=1.0, seed=3, max_tokens=25)
    assert answer.token_ids == [token_reference([20, 30], 3, 0, at, CANDIDATES) for at in range(25)]
