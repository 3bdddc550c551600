"""The answers of the process that looks for Ray, and of one that says nothing."""

import json
import subprocess
from collections.abc import Callable
from importlib.util import find_spec

import pytest

from pagewire.errors import StartupError
from pagewire.launchers import ray_probe
from tests.free_ports import free_ports


def answering(stdout: str, stderr: str = "") -> Callable[..., object]:
    return lambda command, **options: subprocess.CompletedProcess(command, 1, stdout, stderr)


def test_the_address_of_this_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_probe.subprocess, "run", answering('{"host": "10.0.0.7"}'))
    assert ray_probe.find_host("auto") == "10.0.0.7"


def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch):
    error = {"what": "cannot use the Ray cluster", "why": "Ray is 2.1", "todo": "newer"}
    monkeypatch.setattr(ray_probe.subprocess, "run", answering(json.dumps(error)))
    with pytest.raises(StartupError, match=r"cannot use the Ray cluster: Ray is 2\.1"):
        ray_probe.find_host("auto")
    monkeypatch.setattr(ray_probe.subprocess, "run", answering("", "line\nAborted by C++\n"))
    with pytest.raises(StartupError, match=r"Aborted by C\+\+"):
        ray_probe.find_host("auto")


def test_no_answer(monkeypatch: pytest.MonkeyPatch):
    def run(command: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(ray_probe.subprocess, "run", run)
    with pytest.raises(StartupError, match="10.0.0.7:6379 did not answer within 60 s"):
        ray_probe.find_host("10.0.0.7:6379")


@pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed")
def test_addresses_without_a_cluster():
    port = free_ports(1)[0]
    for address, why in (
        (f"127.0.0.1:{port}", f"nothing listens at --ray-address 127.0.0.1:{port}: Connection refused"),
        ("ray://10.0.0.1:10001", "is neither auto nor HOST:PORT"),
    ):
        with pytest.raises(StartupError) as caught:
            ray_probe.find_host(address)
        assert why in caught.value.why
