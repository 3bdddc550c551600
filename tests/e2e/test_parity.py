"""Some families, through gRPC and three processes, give the tokens that transformers gives.

tests/worker/test_parity.py has all of them, tests/e2e/test_modes.py all ways of scheduling."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagewire import AsyncClient, Client, SamplingParams
from tests.checkpoints import VOCAB_SIZE, make_checkpoint
from tests.e2e import services

TOKENS = 24
LONGEST = 60
MODES: dict[str, dict[str, Any]] = {
    "prompts in chunks": {"max_num_batched_tokens": 13},
    "a pool for two or three": {"num_blocks": 16, "block_size": 8},
    "in step with the worker, in chunks, a pool for two or three": {
        "scheduling": "sync",
        "max_num_batched_tokens": 13,
        "num_blocks": 16,
        "block_size": 8,
    },
}
CASES = list(zip(("mistral", "gpt2", "llama"), MODES, strict=True))
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, text=False)


def prompts() -> list[list[int]]:
    """Twenty, of 1 to 60 tokens; no special tokens."""
    draw = random.Random(20)
    lengths = [1, LONGEST, *(draw.randint(2, LONGEST) for _ in range(18))]
    return [[draw.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


@torch.inference_mode()
def greedy(folder: Path) -> list[list[int]]:
    """What transformers continues each prompt with."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = []
    for prompt in prompts():
        tokens: list[int] = []
        step: dict[str, Any] = {"input_ids": torch.tensor([prompt])}
        while len(tokens) < TOKENS:
            output = model(**step, use_cache=True)
            tokens.append(int(output.logits[0, -1].argmax()))
            step = {"input_ids": torch.tensor([tokens[-1:]]), "past_key_values": output.past_key_values}
        answers.append(tokens)
    return answers


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make_checkpoint(request.param, tmp_path_factory.mktemp(request.param))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[list[int]]:
    return greedy(checkpoint)


async def all_at_once(address: str) -> list[list[int]]:
    async with AsyncClient(address) as client:
        results = await asyncio.gather(*(client.generate(prompt, GREEDY) for prompt in prompts()))
    return [result.token_ids for result in results]


@pytest.mark.parametrize(("checkpoint", "mode"), CASES, indirect=["checkpoint"])
def test_greedy_tokens_are_those_of_transformers(checkpoint: Path, expected: list[list[int]], mode: str):
    with services.start(checkpoint, **MODES[mode]) as service:
        assert asyncio.run(all_at_once(service.address)) == expected
        assert asyncio.run(all_at_once(service.address)) == expected, "with a warm prefix cache"
        with Client(service.address) as client:
            services.wait_until(lambda: services.is_idle(client))
