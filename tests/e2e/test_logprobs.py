"""Log-probabilities through gRPC and three processes are those of transformers, whatever happens there."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagewire import AsyncClient, BeamSearch, Client, SamplingParams
from pagewire_client.errors import InvalidArgument
from pagewire_client.results import Generation, TokenLogprob
from pagewire_simulated.scores import logprob_reference
from tests.checkpoints import VOCAB_SIZE, make_checkpoint
from tests.e2e import services
from tests.kernels.references.sampling import log_softmax_reference, ranking_reference

CLOSE = 3e-5
WILD = SamplingParams(
    temperature=1.3, top_p=0.9, repetition_penalty=1.7, frequency_penalty=0.5, bad_token_ids=[9],
    seed=11, n=3, max_tokens=10, ignore_eos=True, text=False, logprobs=3,
)  # fmt: skip
"""Whatever all this does to the choice, values are the model's own."""
LONG = replace(WILD, max_tokens=45)
"""Of the first prompt: its three outputs fill more than the 16 blocks of the small pools, whatever else runs,
so that one of them is preempted."""

FLAGS: list[Any] = [
    pytest.param({"max_num_batched_tokens": 13, "scheduling": "ahead"}, id="in chunks, one step ahead"),
    pytest.param(
        {"num_blocks": 16, "block_size": 8, "swap_space": 0.001, "scheduling": "ahead"}, id="swapped"
    ),
]


def prompts() -> list[list[int]]:
    """Twelve, of which half have a common beginning."""
    draw = random.Random(5)
    common = [draw.randrange(3, VOCAB_SIZE) for _ in range(20)]
    parts = [[draw.randrange(3, VOCAB_SIZE) for _ in range(draw.randint(1, 25))] for _ in range(12)]
    return [common * (place % 2) + part for place, part in enumerate(parts)]


class Reference:
    """transformers."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        """[len(tokens), V]."""
        return self.model(torch.tensor([tokens])).logits[0]

    def logprob(self, tokens: list[int], count: int) -> float:
        """Returns the sum over the last `count` tokens."""
        exact = log_softmax_reference(self.logits(tokens)[-count - 1 : -1])
        return float(exact[range(count), tokens[-count:]].sum())

    def check(self, tokens: list[int], start: int, scores: list[TokenLogprob], candidates: int) -> None:
        """scores: of tokens[start:], at most."""
        logits = self.logits(tokens)[start - 1 : start - 1 + len(scores)]
        exact, order = log_softmax_reference(logits), ranking_reference(logits, VOCAB_SIZE).tolist()
        ordered = -exact.sort(dim=1, descending=True).values
        for place, score in enumerate(scores):
            token = tokens[start + place]
            assert score.logprob == pytest.approx(exact[place, token].item(), abs=CLOSE)
            # Two products of float32 add in different orders, so tokens as close as that may change places.
            near = torch.tensor([-CLOSE, CLOSE], dtype=ordered.dtype) - exact[place, token]
            first, last = torch.searchsorted(ordered[place], near).tolist()
            assert first < score.rank <= last
            assert [each.token_id for each in score.candidates] == order[place][:candidates]
            for each in score.candidates:
                assert each.logprob == pytest.approx(exact[place, each.token_id].item(), abs=CLOSE)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make_checkpoint("llama", tmp_path_factory.mktemp("llama"))
    torch.set_num_threads(threads)


async def all_at_once(address: str, start: int) -> list[Generation]:
    async with AsyncClient(address) as client:
        return await asyncio.gather(
            *(
                client.generate(
                    prompt,
                    WILD if place else LONG,
                    prompt_logprobs=place % 3,
                    prompt_logprobs_start=min(start, len(prompt) - 1),
                )
                for place, prompt in enumerate(prompts())
            )
        )


@pytest.mark.parametrize("flags", FLAGS)
def test_output_and_prompt(checkpoint: Path, flags: dict[str, Any]) -> None:
    """Cold, and with a warm prefix cache that may be used up to position 17."""
    reference = Reference(checkpoint)
    with services.start(checkpoint, **flags) as service:
        for first in (0, 18):
            results = asyncio.run(all_at_once(service.address, first))
            for place, (prompt, result) in enumerate(zip(prompts(), results, strict=True)):
                start = min(first, len(prompt) - 1)
                assert len(result.prompt_logprobs) == len(prompt) - start
                assert (result.prompt_logprobs[0] is None) == (start == 0)
                known = [score for score in result.prompt_logprobs if score is not None]
                reference.check(prompt, max(start, 1), known, place % 3)
                for output in result.outputs:
                    assert len(output.logprobs) == len(output.token_ids) == (10 if place else 45)
                    reference.check(prompt + output.token_ids, len(prompt), output.logprobs, 3)
                    total = sum(score.logprob for score in output.logprobs)
                    assert output.cumulative_logprob == pytest.approx(total)
        with Client(service.address) as client:
            services.wait_until(lambda: services.is_idle(client))
            assert ("num_blocks" in flags) == (services.rank_load(client).preemptions > 0)


@pytest.fixture(scope="module")
def generous(checkpoint: Path) -> Iterator[Client]:
    """A client of a service that gives as many candidates as there are."""
    service = services.start(checkpoint, max_logprobs=-1, block_size=8)
    with service, Client(service.address) as client:
        yield client


def test_streams_and_other_options(checkpoint: Path, generous: Client) -> None:
    """Given ids, the whole vocabulary, and limits."""
    reference, prompt = Reference(checkpoint), prompts()[1]
    assert generous.model().limits.max_logprobs == VOCAB_SIZE
    with generous.stream(prompt, temperature=0, max_tokens=4, logprobs="all") as stream:
        deltas = list(stream)
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
    (output,) = stream.generation.outputs
    logits = reference.logits(prompt + output.token_ids)[len(prompt) - 1 : -1]
    for exact, score in zip(log_softmax_reference(logits).tolist(), output.logprobs, strict=True):
        assert score.rank == 1
        assert [each.token_id for each in score.candidates] == list(range(VOCAB_SIZE))
        assert [each.logprob for each in score.candidates] == pytest.approx(exact, abs=CLOSE)
    named = generous.generate(prompt, temperature=0, max_tokens=1, logprobs=[300, 5]).outputs[0]
    assert [each.token_id for each in named.logprobs[0].candidates] == [300, 5]
    with pytest.raises(InvalidArgument, match=r"output\.logprobs\.top_n"):
        generous.generate(prompt, logprobs=VOCAB_SIZE + 1)


def test_continuations(checkpoint: Path, generous: Client) -> None:
    """Scored as a text is that goes on; the prompt is computed once, and found the second time."""
    reference = Reference(checkpoint)
    prompt, texts = prompts()[3], [" the", "tion", " a cat", "!"]
    scores = generous.score_continuations(prompt, texts, token_logprobs=True)
    again = generous.score_continuations(prompt, texts)
    services.wait_until(lambda: services.is_idle(generous))
    for text, score, repeated in zip(texts, scores, again, strict=True):
        tokens = generous.tokenize(text).token_ids
        logits = reference.logits(prompt + tokens)[len(prompt) - 1 : -1]
        exact = log_softmax_reference(logits)[range(len(tokens)), tokens]
        assert score.token_logprobs == pytest.approx(exact.tolist(), abs=CLOSE)
        assert score.num_tokens == len(tokens)
        assert score.logprob == pytest.approx(exact.sum().item(), abs=1e-4)
        assert repeated.logprob == pytest.approx(score.logprob, abs=1e-4) and not repeated.token_logprobs


def test_a_prompt_that_fills_the_context(checkpoint: Path) -> None:
    """As evaluations ask for it: log-probabilities of as many tokens as the context has, and no output."""
    reference, draw = Reference(checkpoint), random.Random(7)
    prompt = [draw.randrange(3, VOCAB_SIZE) for _ in range(48)]
    ahead: dict[str, Any] = {"speculate": "lookup", "max_num_batched_tokens": 13, "scheduling": "ahead"}
    service = services.start(checkpoint, max_model_len=48, block_size=8, **ahead)
    with service, Client(service.address) as client:
        for n in (1, 2):
            found = client.generate(prompt, max_tokens=0, n=n, prompt_logprobs=2, logprobs=1, stop="x")
            known = [score for score in found.prompt_logprobs if score is not None]
            assert len(known) == 47
            reference.check(prompt, 1, known, 2)
            for output in found.outputs:
                assert (output.text, output.token_ids, output.logprobs) == ("", [], [])
                assert output.finish_reason == "max_tokens"
            assert found.usage.completion_tokens == 0
        tokens = client.tokenize(" the cat").token_ids
        (score,) = client.score_continuations(prompt[: -len(tokens)], [" the cat"])
        text = prompt[: -len(tokens)] + list(tokens)
        assert score.logprob == pytest.approx(reference.logprob(text, len(tokens)), abs=1e-4)
        with pytest.raises(InvalidArgument, match="48 tokens leave no room for output"):
            client.generate(prompt, max_tokens=1)
        with pytest.raises(InvalidArgument, match="49 tokens"):
            client.generate([*prompt, 5], max_tokens=0)
        with pytest.raises(InvalidArgument, match=r"stopping\.max_tokens: must be at least 1"):
            client.generate(prompt[:5], max_tokens=0, beam_search=BeamSearch(2))
        assert client.generate(prompt[:47], max_tokens=1, ignore_eos=True).outputs[0].token_ids
        services.wait_until(lambda: services.is_idle(client))


def test_what_the_demo_model_knows(client: Client) -> None:
    """It finds the right answer likelier than wrong ones."""
    prompt, texts = "The capital of France is", [" Berlin", " Paris", " Rome"]
    answer = client.generate(prompt, temperature=0, max_tokens=2, logprobs=2)
    assert [score.rank for score in answer.outputs[0].logprobs] == [1, 1]
    scores = client.score_continuations(prompt, texts)
    assert max(range(3), key=lambda place: scores[place].logprob) == 1


def test_simulated(checkpoint: Path) -> None:
    """The whole way at load, without a model: values are those of the formula."""
    with services.start(checkpoint, device="simulated", profile="instant", num_blocks=64) as service:
        results = asyncio.run(all_at_once(service.address, 0))
    for prompt, result in zip(prompts(), results, strict=True):
        known = [score for score in result.prompt_logprobs if score is not None]
        for output in result.outputs:
            tokens = prompt + output.token_ids
            for place, score in enumerate(known + output.logprobs, start=1):
                logprob, rank = logprob_reference(tokens[:place], tokens[place], VOCAB_SIZE)
                assert (score.logprob, score.rank) == (pytest.approx(logprob, rel=1e-6), rank)
