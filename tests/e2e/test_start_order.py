"""Processes started one by one, in any order: each waits for the others without hanging."""

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire import Client
from pagewire.ipc import transport
from pagewire_client.errors import Unavailable
from tests.e2e.services import ROOT
from tests.free_ports import free_ports

PARTS = ("frontend", "engine", "worker")
_SIMULATED = ["--device=simulated", "--profile=instant", "--num-blocks=100"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as name:
        yield Path(name) / "sockets"


@contextlib.contextmanager
def running(part: str, folder: Path, port: int) -> Iterator[None]:
    """One of the three processes, until the block ends."""
    frontends, workers = transport.frontends_address(folder), transport.workers_address(folder)
    arguments = {
        "frontend": [f"--engine={frontends}", f"--port={port}", "--http-port=-1"],
        "engine": [f"--listen={frontends}", f"--listen-workers={workers}", "--external-workers", *_SIMULATED],
        "worker": [f"--engine={workers}"],
    }[part]
    command = [sys.executable, "-m", "pagewire", part, *arguments, "--log-level=error"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("order", list(itertools.permutations(PARTS)), ids="-".join)
def test_any_order(folder: Path, order: tuple[str, ...]):
    """While one is missing, calls end at once with UNAVAILABLE; then the service answers."""
    (port,) = free_ports(1)
    with contextlib.ExitStack() as stack, Client(f"127.0.0.1:{port}") as client:
        for part in order:
            with pytest.raises(Unavailable):
                client.generate("a b", max_tokens=1, timeout=30)
            stack.enter_context(running(part, folder, port))
        client.wait_ready()
        assert len(client.generate("a b", max_tokens=5, ignore_eos=True).token_ids) == 5
