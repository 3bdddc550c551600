"""The commands of deploy/kubernetes/lws compute one model, run on this host with its variables."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pagewire import Client, SamplingParams
from pagewire.host import spawn as process
from pagewire.ipc.curve import make_keys
from tests.e2e import services
from tests.free_ports import free_ports
from tests.test_kubernetes import LWS, expanded, pods_of_a_group

pytestmark = pytest.mark.cpu_kernels
PROMPT = "The capital of France is"
PARAMS = SamplingParams(temperature=1.0, seed=7, max_tokens=40, ignore_eos=True)


def test_a_group_computes_what_one_pod_does_and_the_others_stay_until_the_leader_is_gone(tmp_path: Path):
    with services.start(device="cpu") as service, Client(service.address) as client:
        expected = client.generate(PROMPT, PARAMS).token_ids
    make_keys(tmp_path / "secret")
    here = arguments_here(tmp_path)
    leader, others = (each["spec"] for each in pods_of_a_group())
    for each in (leader, others):
        subprocess.run([here(word) for word in each["initContainers"][0]["command"]], check=True)
    (container,) = others["containers"]
    _, *words = (here(word) for word in expanded(leader["containers"][0]["args"]))
    command, *others_words = (here(word) for word in expanded(container["args"]))
    with (
        services.alone(tmp_path, command, *others_words) as ranks,
        closing(services.Serve(tmp_path, *words, port=int(here("50051")))) as serving,
    ):
        address = serving.wait_ready()["address"].replace("0.0.0.0", "127.0.0.1")
        with Client(address) as client:
            assert client.generate(PROMPT, PARAMS).token_ids == expected
        assert len(services.processes(ranks.pid)["worker"]) == 1
        _, *hook = (here(word) for word in container["lifecycle"]["preStop"]["exec"]["command"])
        environment = os.environ | {"LWS_LEADER_ADDRESS": LWS["$(LWS_LEADER_ADDRESS)"]}
        waiting = subprocess.Popen([sys.executable, *hook], env=environment, preexec_fn=ends_with_this())
        serving.close()
        assert waiting.wait(services.PATIENCE_S) == 0
        assert ranks.poll() is None
        ranks.terminate()
        assert ranks.wait(services.PATIENCE_S) == 0


def arguments_here(folder: Path) -> Callable[[str], str]:
    """Returns what replaces folders and ports of pods by those of this test."""
    ports = ("29500", "50051", "8000", "9464")
    found = dict(zip(ports, map(str, free_ports(len(ports))), strict=True))
    (folder / "keys").mkdir()

    def here(word: str) -> str:
        for port, free in found.items():
            word = word.replace(port, free)
        return word.replace("/secret", f"{folder}/secret").replace("/keys", f"{folder}/keys")

    return here


def ends_with_this() -> Any:
    return partial(process.die_with, os.getpid(), 9)
