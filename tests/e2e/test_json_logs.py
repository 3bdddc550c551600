"""With --log-format json, standard error of the whole service is for programs."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import trustme

from tests.e2e import services


def test_every_line_of_every_process_is_an_object(serve: Callable[..., services.Serve]):
    service = serve("--device=simulated", "--profile=instant", "--log-format=json")
    service.wait_ready()
    (worker,) = services.processes(service.process.pid)["worker"]
    os.kill(worker, signal.SIGKILL)
    services.wait_until(lambda: services.processes(service.process.pid).get("worker", [worker]) != [worker])
    service.process.terminate()
    code, error = service.end()
    assert code == 0
    lines = [json.loads(line) for line in error.splitlines()]
    assert {"serve", "engine-core", "frontend"} <= {line["process"] for line in lines}
    for line in lines:
        assert {"time", "level", "logger", "message", "process", "pid"} <= line.keys()
        assert datetime.fromisoformat(line["time"]).tzinfo is not None


def test_last_words_are_an_object_too(serve: Callable[..., services.Serve]):
    service = serve("/nowhere", "--log-format=json")
    code, error = service.end()
    last = json.loads(error.splitlines()[-1])
    assert code == 1 and last["level"] == "error" and last["todo"]


def test_a_handshake_that_fails_writes_no_line(serve: Callable[..., services.Serve], tmp_path: Path):
    """gRPC would write one of its own for each, and strangers can make as many as they like."""
    issued = trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert(
        "127.0.0.1", key_type=trustme.KeyType.ECDSA
    )
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    (tmp_path / "server.key").chmod(0o600)
    flags = [f"--tls-cert={tmp_path}/server.pem", f"--tls-key={tmp_path}/server.key"]
    service = serve("--device=simulated", "--profile=instant", "--log-format=json", *flags)
    host, _, port = service.wait_ready()["address"].rpartition(":")
    with socket.create_connection((host, int(port)), 60) as stranger:
        stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):  # it may be closed with bytes that were not read
            while stranger.recv(4096):
                pass
    service.process.terminate()
    code, error = service.end()
    assert code == 0
    assert all(json.loads(line)["process"] for line in error.splitlines())
