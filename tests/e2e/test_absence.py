"""Unsupervised frontend, core and worker: each waits for absent peers without hanging."""

import contextlib
import subprocess
from pathlib import Path

from pagewire import Client
from pagewire_client.errors import Unavailable
from tests.e2e import services
from tests.e2e.test_simulated import without_weights
from tests.free_ports import free_ports


def test_a_process_that_leaves_may_come_back(tmp_path: Path):
    """The worker ends, and its core with it; the frontend waits for their successors."""
    folder, runtime, (port,) = str(without_weights(tmp_path)), tmp_path / "run", free_ports(1)
    runtime.mkdir(mode=0o700)
    arguments = {
        "frontend": [folder, f"--port={port}", "--ready-timeout=0"],
        "engine": [folder, "--device=simulated", "--profile=instant", "--external-workers"],
        "worker": [f"--engine=ipc://{runtime}/pagewire/workers.ipc"],
    }
    started: dict[str, subprocess.Popen[str]] = {}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(f"127.0.0.1:{port}"))

        def start(name: str) -> None:
            log_level = "--log-level=error"
            started[name] = stack.enter_context(services.alone(runtime, name, *arguments[name], log_level))

        def is_served() -> bool:
            try:
                return len(client.generate([20, 30], max_tokens=5, ignore_eos=True).token_ids) == 5
            except Unavailable:
                return False

        for name in ("frontend", "engine", "worker"):
            start(name)
        services.wait_until(is_served)
        started["worker"].kill()
        assert started["engine"].wait(services.PATIENCE_S) == 1
        assert not is_served()
        start("worker")
        start("engine")
        services.wait_until(is_served)
