"""Planned stops: of the engine core alone, and drains from the command line."""

import os
import signal
import subprocess
import sys

import pytest

from pagewire import Client
from pagewire_client.errors import Unavailable
from tests.e2e import services

LENGTH = 400


def test_an_engine_core_is_told_to_end():
    """Its supervisor starts another one, which adopts the worker: streams pause and go on, and nothing is
    missing."""
    flags = {"device": "simulated", "profile": "cpu", "frontends": 2}
    with services.start(**flags) as service, Client(service.address) as client:
        streams = [
            client.stream([5, number], max_tokens=LENGTH, ignore_eos=True, seed=number) for number in range(6)
        ]
        for stream in streams:
            next(stream)
        (core,) = services.processes(service.pid)["engine"]
        workers = services.processes(service.pid)["worker"]
        with services.all_die([core]):
            os.kill(core, signal.SIGTERM)
            lengths = [len(stream.result().outputs[0].token_ids) for stream in streams]
        assert lengths == [LENGTH] * len(streams)
        services.wait_until(lambda: services.are_back(service, "engine", [core]))
        assert services.processes(service.pid)["worker"] == workers
        client.wait_ready()
        services.wait_until(lambda: services.is_idle(client))


def pagewire(*words: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "pagewire", *words],
        cwd=services.ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=services.PATIENCE_S,
    )
    return run.stdout


def test_draining_and_resuming_on_the_command_line():
    """The workers stand still meanwhile, so that the stream does not end before the command has started, and
    are not taken for hung."""
    slowly = {"profile": "cpu", "worker_fault": ("slow-factor=20",)}  # it is not over before they stand
    with (
        services.start(device="simulated", hang_timeout=0.0, **slowly) as service,
        Client(service.address) as client,
    ):
        workers = services.processes(service.pid)["worker"]
        with client.stream([5, 9], max_tokens=900, ignore_eos=True) as stream:
            next(stream)
            for worker in workers:
                os.kill(worker, signal.SIGSTOP)
            shown = pagewire("drain", f"--address={service.address}")
            assert shown.endswith(f" at {service.address}: draining, 1 requests in flight\n")
            assert not client.healthy()
            with pytest.raises(Unavailable) as caught:
                client.score_continuations("a", [" b"])
            assert caught.value.reason == "DRAINING" and caught.value.retry_after
            for worker in workers:
                os.kill(worker, signal.SIGCONT)
            next(stream)
        shown = pagewire("resume", f"--address={service.address}")
        assert shown.endswith(f" at {service.address}: serving, 0 requests in flight\n")
        assert client.healthy()
        assert client.generate([5], max_tokens=3, ignore_eos=True).usage.completion_tokens == 3
