"""Running services for the tests, and their processes as the kernel sees them."""

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from frontend.prompts import process as reader
from pagewire import Client
from pagewire.config import ServeConfig
from pagewire.host import spawn as process
from pagewire.host import standby
from pagewire.local_service import Service
from pagewire.v1 import admin_pb2
from pagewire_client.errors import Unavailable
from pagewire_client.results import FinishReason
from tests.patience import PATIENCE_S
from tests.patience import wait_until as wait_until

ROOT = Path(__file__).parents[2]


def start(model: str | Path = "demo", **flags: Any) -> Service:
    """Starts a service on a free port, with fewer log lines. Without standbys, unless the test asks for them:
    each imports torch, which would take the cores from the other tests."""
    flags = {"no_standby": True, **flags}
    return Service(ServeConfig(model=str(model), port=0, log_level="error", **flags))


def rank_load(client: Client) -> admin_pb2.RankLoad:
    """Returns the load of the only engine."""
    return client.load().ranks[0]


def core_process(service: Service, kind: str, rank: int) -> int:
    """Returns the process of an engine core, or of its worker."""
    address = engine_addresses(service)[rank]
    word = f"--listen={address}"
    if kind == "worker":
        word = f"--engine={address.replace('frontends', 'workers')}"
    found = processes(service.pid).get(kind, [])
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") for pid in found}
    (pid,) = [pid for pid, arguments in words.items() if word in arguments]
    return pid


def pulls(service: Service) -> dict[str, float]:
    """Returns how many pulls had which outcome, at all cores."""
    with urllib.request.urlopen(f"http://{service.facts['http']}/metrics") as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for outcome, value in re.findall(
        r'^pagewire_core_kv_pulls_total\{.*outcome="(\w+)".*\} (\S+)$', text, re.M
    ):
        found[outcome] = found.get(outcome, 0.0) + float(value)
    return found


def is_idle(client: Client) -> bool:
    """Returns True if no request runs or waits, and every block is free; False while no core serves."""
    try:
        loads = client.load().ranks
    except Unavailable:
        return False
    return all(
        (load.running_requests, load.waiting_requests, load.kv_used_tokens) == (0, 0, 0) for load in loads
    )


class Serve:
    """`pagewire serve` as a user starts it, with its own folder for sockets."""

    def __init__(self, runtime: Path, *arguments: str, port: int = 0, inside: Sequence[str] = ()) -> None:
        """A service without standbys: see start(). inside: a command that becomes the one behind it."""
        self.runtime = runtime
        self.process = subprocess.Popen(
            [
                *(*inside, sys.executable, "-m", "pagewire"),
                *("serve", "--no-standby", f"--port={port}", *arguments),
            ],
            cwd=ROOT,
            env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> dict[str, str]:
        """Returns the facts of the ready line, with "address"."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == ["ready:"], self.end()
        return {"address": words[1].removeprefix("grpc://")} | dict(word.split("=", 1) for word in words[2:])

    def wait_loading(self) -> None:
        """Returns in the middle of the start."""
        assert self.process.stderr is not None
        while not self.process.stderr.readline().startswith("loading"):
            assert self.process.poll() is None

    def end(self) -> tuple[int, str]:
        """Waits for the end; returns exit code and standard error."""
        _, error = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, error

    def close(self) -> None:
        """Kills whatever still runs after the test."""
        self.process.kill()
        self.process.communicate()


class Frontend:
    """A separate `pagewire frontend` for a running service; ready once constructed."""

    def __init__(self, engine: str) -> None:
        """engine: see --engine."""
        self._process, status = process.spawn(
            ["frontend", "--port=0", f"--engine={engine}", "--log-level=error"], process_group=0
        )
        with os.fdopen(status) as events:
            ready = next(event for event in map(json.loads, events) if event["event"] == "ready")
        self.address = str(ready["address"])

    def kill(self) -> None:
        """Kills it; there is no supervisor that restarts it."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """Stops it, if it still runs."""
        self.kill()


def engine_addresses(service: Service) -> list[str]:
    """Returns the addresses of a service's engine cores, as passed to its frontends."""
    (frontend, *_) = processes(service.pid)["frontend"]
    return [word.removeprefix("--engine=") for word in words_of(frontend) if word.startswith("--engine=")]


def words_of(pid: int) -> list[str]:
    """Returns the command of a process; [""] where there is none."""
    return _read(f"/proc/{pid}/cmdline").decode().split("\0")


def command_of(pid: int) -> str:
    """Returns the pagewire command of a process, else its program; "" of a zombie. What a frontend has forked
    to read prompts has its arguments, but another name."""
    if _read(f"/proc/{pid}/comm").strip() == reader.NAME:
        return "reader"
    words = words_of(pid)
    return words[words.index("pagewire") + 1] if "pagewire" in words else words[0]


def processes(pid: int) -> dict[str, list[int]]:
    """Returns the living descendants of a process by pagewire command."""
    found: dict[str, list[int]] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for child in map(int, _read(f"/proc/{parent}/task/{parent}/children").split()):
            if command := command_of(child):
                found.setdefault(command, []).append(child)
                waiting.append(child)
    return found


def settled(pid: int, readers: int = 1) -> dict[str, list[int]]:
    """Returns the living descendants of a process by pagewire command, once so many have named themselves
    readers: what a frontend has forked has its name until it runs."""
    wait_until(lambda: len(processes(pid).get("reader", [])) >= readers)
    return processes(pid)


def metric(facts: Mapping[str, str], name: str) -> list[float]:
    """Returns the values of a metric, of each process that has it. facts: of the ready line."""
    with urllib.request.urlopen(f"http://{facts['http']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{")]


def have_standbys(service: Service) -> bool:
    """Returns whether all processes that shall have standbys have some."""
    return all(metric(service.facts, "pagewire_supervisor_standby_ready"))


def stands_by(pid: int) -> bool:
    """Returns whether a process is a standby, which waits to fork others."""
    return _read(f"/proc/{pid}/comm").strip() == standby.NAME


def aborted_elsewhere(owner: Client, operator: Client, prompt: str, **options: Any) -> list[int] | None:
    """Begins a stream that another client then sees and aborts. Returns how many requests ran at each rank
    while it did; None where the stream was over before, as happens on a busy machine."""
    with owner.stream(prompt, **options) as stream:
        next(stream)
        running = [rank.running_requests for rank in operator.load().ranks]
        name = stream.generation.request_id
        aborted = operator.abort([name, "unknown"])
        was_aborted = stream.result().finish_reason is FinishReason.ABORTED
    assert aborted == [name] * was_aborted
    return running if was_aborted else None


def are_back(service: Service, command: str, killed: list[int]) -> bool:
    """Returns True once as many other processes of a command run as were killed."""
    found = processes(service.pid).get(command, [])
    return len(found) == len(killed) and not set(found) & set(killed)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@contextlib.contextmanager
def all_die(pids: list[int]) -> Iterator[None]:
    """Fails unless these processes end soon after the block. Some may have ended since they were listed."""
    with contextlib.ExitStack() as stack:
        descriptors: dict[int, int] = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                descriptors[pid] = os.pidfd_open(pid)
                stack.callback(os.close, descriptors[pid])
        yield
        for pid, descriptor in descriptors.items():
            assert select.select([descriptor], [], [], PATIENCE_S)[0], f"process {pid} lives on"


@contextlib.contextmanager
def alone(runtime: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """`pagewire ARGUMENTS` as a user starts it, with its own folder for sockets."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pagewire", *arguments],
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
