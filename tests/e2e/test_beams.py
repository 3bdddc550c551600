"""Beam search and best_of through the whole service."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from pagewire import AsyncClient, BeamSearch, Client, SamplingParams
from pagewire.local_service import Service
from pagewire_client.errors import InvalidArgument
from pagewire_client.results import Generation
from tests.checkpoints import make_checkpoint
from tests.e2e import services
from tests.worker.test_beam_parity import CASES, expected, prompt


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def service(checkpoint: Path) -> Iterator[Service]:
    with services.start(checkpoint, num_blocks=60, block_size=4, max_num_seqs=20) as service:
        yield service


def params(case: dict[str, Any]) -> SamplingParams:
    """A case of tests.worker.test_beam_parity, as a caller writes it."""
    return SamplingParams(
        n=case.get("n", 3),
        beam_search=BeamSearch(case.get("width", 4), case.get("length_penalty"), case.get("early_stopping")),
        max_tokens=10,
        min_tokens=case.get("min_tokens"),
        stop_token_ids=case.get("stops", [])[1:],
        repetition_penalty=case.get("repetition_penalty"),
        bad_token_ids=case.get("bad_token_ids", []),
        include_stop=True,
        text=False,
    )


SOME = ["many ends, early stopping", "short ones are better", "not too short", "nine beams"]
"""tests.worker.test_beam_parity has all."""


async def all_at_once(address: str) -> list[Generation]:
    async with AsyncClient(address) as client:
        searches = (client.generate(prompt(7), params(CASES[name])) for name in SOME)
        return list(await asyncio.gather(*searches))


def test_equal_to_transformers(service: Service, checkpoint: Path):
    """All at once, with more beams than there are rows."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    for name, result in zip(SOME, asyncio.run(all_at_once(service.address)), strict=True):
        assert [output.token_ids for output in result.outputs] == expected(model, prompt(7), CASES[name])
        assert result.usage.completion_tokens == sum(len(output.token_ids) for output in result.outputs)
    with Client(service.address) as client:
        services.wait_until(lambda: services.is_idle(client))


def test_best_of_returns_the_most_probable_samples(service: Service):
    with Client(service.address) as client:
        options: dict[str, Any] = {"seed": 5, "max_tokens": 6, "ignore_eos": True, "text": False}
        everything = client.generate(prompt(1), n=8, logprobs=0, **options)
        best = client.generate(prompt(1), n=3, best_of=8, **options)
    ranked = sorted(everything.outputs, key=lambda output: -(output.cumulative_logprob or 0))
    assert [output.token_ids for output in best.outputs] == [output.token_ids for output in ranked[:3]]
    assert best.usage.completion_tokens == everything.usage.completion_tokens == 48


def test_more_beams_than_blocks_are_refused_by_name(service: Service):
    """20 beams of some 230 tokens are more than 60 blocks of 4."""
    with Client(service.address) as client, pytest.raises(InvalidArgument) as caught:
        client.generate(prompt(1), beam_search=BeamSearch(20))
    assert "sampling.beam_search.width" in str(caught.value)
