"""Prompts of embeddings through gRPC and three processes, which are killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagewire import Client, SamplingParams
from pagewire.local_service import Service
from pagewire_client.errors import RpcError
from pagewire_client.results import Generation
from tests.checkpoints import make_checkpoint
from tests.e2e import services

pytestmark = pytest.mark.usefixtures("patient")

PROMPT = [3 + 7 * i % 50 for i in range(40)]
PARAMS = SamplingParams(seed=5, n=2, max_tokens=60, ignore_eos=True, text=False, logprobs=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def values(folder: Path) -> torch.Tensor:
    """The embeddings of PROMPT."""
    table: torch.Tensor = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight
    return table.detach()[PROMPT].float()


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """A pool in which two requests have no room at the same time, and prompts in chunks."""
    flags = {"max_num_batched_tokens": 16, "num_blocks": 24, "block_size": 8, "max_deaths": 99}
    with services.start(folder, dtype="float32", frontends=2, **flags) as service:
        yield service


def outputs(result: Generation) -> list[tuple[list[int], list[float]]]:
    return [(each.token_ids, [score.logprob for score in each.logprobs]) for each in result.outputs]


@pytest.fixture(scope="module")
def of_ids(service: Service) -> Generation:
    with Client(service.address) as client:
        return client.generate(PROMPT, PARAMS)


@pytest.mark.parametrize("victim", ["", "worker", "engine", "frontend"])
def test_the_same_as_ids(service: Service, values: torch.Tensor, of_ids: Generation, victim: str):
    with Client(service.address) as client, client.stream({"prompt_embeds": values}, PARAMS) as stream:
        next(stream)
        for pid in services.processes(service.pid).get(victim, []):
            os.kill(pid, signal.SIGKILL)
        result = stream.result()
    assert outputs(result) == outputs(of_ids) and result.usage.prompt_tokens == len(PROMPT)


def test_preempted(service: Service, values: torch.Tensor, of_ids: Generation):
    with Client(service.address) as client, client.stream({"prompt_embeds": values}, PARAMS) as one:
        with client.stream(PROMPT, PARAMS) as other:
            assert outputs(other.result()) == outputs(of_ids)
        assert outputs(one.result()) == outputs(of_ids)


def test_values_that_are_not_finite(service: Service, values: torch.Tensor):
    broken = values.clone()
    broken[7, 3] = torch.nan
    with Client(service.address) as client, pytest.raises(RpcError, match=r"prompt\.embeddings\.data"):
        client.generate({"prompt_embeds": broken}, PARAMS)
