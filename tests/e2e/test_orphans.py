"""kill -9 on any process, in any state: nothing is left of what it had started, and the next start works.

Leftovers are found by the environments of all processes: those of a service contain the folder of its test,
even if they have been given another parent.
"""

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire import Client
from tests.e2e import services
from tests.e2e.services import Serve
from tests.e2e.test_simulated import without_weights

Start = Callable[..., Serve]
FLAGS = (
    "--device=simulated",
    "--profile=instant",
    "--frontends=2",
    "--log-level=error",
    "--max-restart-pause=0",
)
WHOLE = ["engine", "frontend", "frontend", "reader", "reader", "worker"]
"""Each frontend has a process that forks those which read prompts for it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(without_weights(tmp_path_factory.mktemp("orphans")))


def members(runtime: Path) -> dict[int, str]:
    """Returns living processes of a service, whatever their parents, with their commands."""
    mark = f"XDG_RUNTIME_DIR={runtime}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = services.command_of(int(entry.name))
    return found


def wait_until_it_is_whole(runtime: Path) -> None:
    """Neither less nor more. A reader has the name of the frontend that forked it until it runs."""
    services.wait_until(lambda: sorted(members(runtime).values()) == sorted([*WHOLE, "serve"]))


def wait_until_nothing_is_left(runtime: Path) -> None:
    services.wait_until(lambda: not members(runtime))


def send(runtime: Path, commands: tuple[str, ...], number: signal.Signals) -> None:
    """To all processes that run one of these commands."""
    for pid, command in members(runtime).items():
        if command in commands:
            os.kill(pid, number)


@pytest.mark.parametrize(
    "stopped",
    [(), ("serve",), ("engine", "worker", "frontend")],
    ids=lambda commands: "-and-".join(commands) or "none",
)
def test_nothing_survives_the_supervisor(serve: Start, folder: str, stopped: tuple[str, ...]):
    """Also where some of them were stopped before."""
    service = serve(folder, *FLAGS)
    service.wait_ready()
    wait_until_it_is_whole(service.runtime)
    send(service.runtime, stopped, signal.SIGSTOP)
    service.process.kill()
    wait_until_nothing_is_left(service.runtime)


@pytest.mark.parametrize(
    ("victim", "stopped", "goes_with_it"),
    [
        ("engine", (), ("engine",)),
        ("engine", ("worker",), ("engine", "worker")),
        ("worker", (), ("engine", "worker")),
        ("frontend", ("engine", "worker"), ("frontend",)),
    ],
    ids=["core", "core-of-a-stopped-worker", "worker", "frontend-of-a-stopped-core"],
)
def test_a_service_loses_one_and_is_whole_again(
    serve: Start, folder: str, victim: str, stopped: tuple[str, ...], goes_with_it: tuple[str, ...]
):
    """Neither less than before, nor more. A worker is adopted by the next core, unless it does not answer."""
    service = serve(folder, *FLAGS, "--hang-timeout=1.5")
    address = service.wait_ready()["address"]
    wait_until_it_is_whole(service.runtime)
    before = members(service.runtime)
    send(service.runtime, stopped, signal.SIGSTOP)
    lost = [pid for pid, command in before.items() if command == victim]
    with services.all_die([pid for pid, command in before.items() if command in goes_with_it]):
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
    wait_until_it_is_whole(service.runtime)
    with Client(address) as client:
        client.wait_ready(services.PATIENCE_S)
        assert len(client.generate([20, 30], max_tokens=5, ignore_eos=True).token_ids) == 5
    service.process.kill()
    wait_until_nothing_is_left(service.runtime)


def test_a_core_dies_while_no_process_can_replace_it(serve: Start, folder: str):
    """Its worker waits, and is adopted later."""
    service = serve(folder, *FLAGS)
    service.wait_ready()
    (worker,) = [pid for pid, command in members(service.runtime).items() if command == "worker"]
    (core,) = [pid for pid, command in members(service.runtime).items() if command == "engine"]
    service.process.send_signal(signal.SIGSTOP)
    os.kill(core, signal.SIGKILL)
    service.process.send_signal(signal.SIGCONT)
    services.wait_until(lambda: core not in members(service.runtime))
    wait_until_it_is_whole(service.runtime)
    assert worker in members(service.runtime)
    service.process.kill()
    wait_until_nothing_is_left(service.runtime)


@pytest.mark.parametrize("seed", range(3))
def test_killed_in_the_middle_of_the_start(serve: Start, folder: str, seed: int):
    """After each start, some of what was started goes first; the supervisor last."""
    dice = random.Random(seed)
    service = serve(folder, *FLAGS)
    enough = dice.randrange(1, 6)
    services.wait_until(lambda: len(members(service.runtime)) >= enough)
    # Between fork and exec a child still looks like the supervisor. One that is stopped in that moment,
    # before it has asked to die with its parent, cannot be helped.
    others = [pid for pid, command in members(service.runtime).items() if command != "serve"]
    for pid in dice.sample(others, dice.randrange(len(others) + 1)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, dice.choice([signal.SIGKILL, signal.SIGSTOP]))
    service.process.kill()
    wait_until_nothing_is_left(service.runtime)
    again = serve(folder, *FLAGS)
    again.wait_ready()
    assert len(list(again.runtime.iterdir())) == 1, "what the killed one has left was swept up"


def test_a_killed_core_that_was_started_alone_leaves_its_address_free(folder: str, tmp_path: Path):
    """Its socket files are left, and do not prevent a start."""
    for _ in range(2):
        with services.alone(tmp_path, "engine", folder, *FLAGS[:2]) as engine:
            services.wait_until(lambda: "worker" in members(tmp_path).values())
            assert engine.poll() is None
        wait_until_nothing_is_left(tmp_path)
        assert list(tmp_path.rglob("*.ipc"))
