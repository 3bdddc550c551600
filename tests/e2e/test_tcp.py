"""The three processes, started one by one, over TCP with keys."""

import contextlib
import os
from collections.abc import Iterator

import pytest

from pagewire import Client, SamplingParams
from pagewire.ipc.curve import make_keys
from tests.e2e.services import PATIENCE_S, _read, alone
from tests.free_ports import free_ports

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1, and the same in IPv6 sockets."""


def listening(pids: list[int]) -> set[tuple[str, int]]:
    """(address in hexadecimal, port) where these processes listen on TCP."""
    inodes = {
        link.partition("[")[2].rstrip("]")
        for pid in pids
        for link in _links(f"/proc/{pid}/fd")
        if link.startswith("socket:")
    }
    found = set()
    for table in ("tcp", "tcp6"):
        for line in _read(f"/proc/self/net/{table}").decode().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                found.add((address, int(port, 16)))
    return found


def _links(folder: str) -> Iterator[str]:
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            yield os.readlink(f"{folder}/{name}")


def test_a_stream_over_tcp_with_no_other_listeners(tmp_path):
    """S2: every listener is on loopback, and one that was asked for."""
    engine_key, client_key = make_keys(tmp_path / "keys")
    grpc_port, frontends, workers = free_ports(3)
    key = f"--curve-key={client_key}"
    with contextlib.ExitStack() as stack:
        worker = alone(tmp_path, "worker", f"--engine=tcp://127.0.0.1:{workers}", key, "--log-level=error")
        frontend = alone(
            tmp_path,
            "frontend",
            f"--engine=tcp://127.0.0.1:{frontends}",
            key,
            f"--port={grpc_port}",
            "--http-port=0",
            "--log-level=error",
        )
        engine = alone(
            tmp_path,
            "engine",
            f"--listen=tcp://127.0.0.1:{frontends}",
            f"--listen-workers=tcp://127.0.0.1:{workers}",
            "--external-workers",
            f"--curve-key={engine_key}",
            "--device=simulated",
            "--profile=instant",
            "--log-level=error",
        )
        pids = [stack.enter_context(process).pid for process in (worker, frontend, engine)]
        client = stack.enter_context(Client(f"127.0.0.1:{grpc_port}"))
        client.wait_ready(PATIENCE_S)
        (answer,) = client.generate("hello", SamplingParams(max_tokens=8, ignore_eos=True)).outputs
        assert len(answer.token_ids) == 8
        listeners = listening(pids)
        assert {port for _, port in listeners} >= {grpc_port, frontends, workers}
        assert {address for address, _ in listeners} <= LOOPBACK


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("engine", "--listen=tcp://127.0.0.1:7", "--device=simulated"), "needs keys"),
        (("frontend", "--engine=tcp://127.0.0.1:7", "--port=0", "--http-port=0"), "needs keys"),
        (("worker", "--engine=tcp://127.0.0.1:7"), "needs keys"),
        (("worker", "--engine=tcp://127.0.0.1:7", "--curve-key=/nowhere"), "cannot use --curve-key"),
        (("engine", "--listen-workers=tcp://127.0.0.1:7", "--device=simulated"), "add --external-workers"),
    ],
)
def test_without_keys_no_process_starts(tmp_path, arguments, why):
    with alone(tmp_path, *arguments) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert why in errors and "Traceback" not in errors
