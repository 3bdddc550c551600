"""Log-probabilities of real steps equal those that transformers' logits have."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagewire.v1.generation_pb2 import LogprobOptions
from tests.checkpoints import VOCAB_SIZE
from tests.kernels.references.sampling import log_softmax_reference, ranking_reference
from tests.logprob_columns import EVERYTHING, Scored, listed, top
from tests.worker.fakes import Driver, resolved_params
from worker.sampling.logprobs import scores

PROMPT = [5, 100, 33, 210, 7, 8, 9, 9, 9, 250, 31, 2, 17]
REQUESTS = {"none": top(0), "top": top(7), "listed": listed(300, 2, 250), "all": EVERYTHING}
Checkpoints = Callable[..., Path]


def assert_right(folder: Path, tokens: list[int], start: int, scores: list[Scored], request: LogprobOptions):
    """scores: of tokens[start:] after what stands before each."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0]
    assert len(scores) == len(tokens) - start
    exact = log_softmax_reference(logits[start - 1 : -1])
    order = ranking_reference(logits[start - 1 : -1], VOCAB_SIZE)
    for place, scored in enumerate(scores):
        ids = order[place].tolist()
        assert scored.logprob == pytest.approx(exact[place, tokens[start + place]].item(), abs=2e-5)
        assert_ranked([scored.rank], [tokens[start + place]], ids, exact[place])
        assert scored.ids == (
            list(range(VOCAB_SIZE)) if request.all else list(request.token_ids.ids) or ids[: request.top_n]
        )
        assert_ranked(scored.ranks, scored.ids, ids, exact[place])
        assert scored.logprobs == pytest.approx([exact[place, i].item() for i in scored.ids], abs=2e-5)


def assert_ranked(ranks: list[int], tokens: list[int], order: list[int], exact: torch.Tensor):
    """ranks: of `tokens`. order: all ids by their exact values, largest first. Ids whose values differ by
    less than the tolerance of these may have changed places."""
    for rank, token in zip(ranks, tokens, strict=True):
        assert exact[order[rank - 1]].item() == pytest.approx(exact[token].item(), abs=2e-5)


@pytest.mark.parametrize("asked", REQUESTS)
def test_output_and_prompt(asked: str, checkpoint: Checkpoints) -> None:
    """Raw values, whatever penalties, masks and temperature do to the choice; among rows that want others
    and rows that want nothing."""
    folder, options = checkpoint("llama"), REQUESTS[asked]
    driver = Driver(folder, record=False)
    params = resolved_params(
        temperature=1.7, seed=3, repetition_penalty=1.8, presence_penalty=1.0, bad_token_ids=[9]
    )
    driver.add([3, 4, 5], 4)
    sequence = driver.add(PROMPT, 6, params, wants=options, prompt_wants=options)[0]
    other = driver.add([7] * 9, 5, wants=top(3), prompt_wants=top(0), prompt_start=4)[0]
    driver.run()
    assert_right(folder, sequence.tokens, 1, sequence.prompt_scores + sequence.scores, options)
    assert_right(folder, other.tokens[:9], 4, other.prompt_scores, top(0))
    assert_right(folder, other.tokens, 9, other.scores, top(3))


@pytest.mark.parametrize("budget", [1, 3, 8, 13])
@pytest.mark.parametrize("start", [1, 6, 12])
def test_prompts_in_chunks(
    budget: int, start: int, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any size, with rows that decode beside them, and with logits made two at a time."""
    folder = checkpoint("qwen2")
    monkeypatch.setattr(scores, "LOGITS", 2 * VOCAB_SIZE + 5)
    driver = Driver(folder, budget=budget, record=False)
    if budget > 1:
        driver.add([4], 30)
    sequence = driver.add(PROMPT, 3, wants=top(2), prompt_wants=top(2), prompt_start=start)[0]
    driver.run()
    assert_right(folder, sequence.tokens, start, sequence.prompt_scores + sequence.scores, top(2))


def test_forks_have_their_own(checkpoint: Checkpoints) -> None:
    folder = checkpoint("llama")
    driver = Driver(folder, record=False)
    siblings = driver.add(
        PROMPT, 5, resolved_params(temperature=1.5, seed=8, n=3), n=3, wants=top(1), prompt_wants=top(1)
    )
    driver.run()
    assert len({tuple(sequence.output) for sequence in siblings}) == 3
    for sequence in siblings:
        assert_right(folder, sequence.tokens, len(PROMPT), sequence.scores, top(1))
    assert_right(folder, PROMPT, 1, siblings[0].prompt_scores, top(1))
    assert not siblings[1].prompt_scores


def test_rows_that_want_none_have_none(checkpoint: Checkpoints) -> None:
    driver = Driver(checkpoint("llama"), record=False)
    sequence = driver.add(PROMPT, 4)[0]
    driver.run()
    assert not sequence.scores and not sequence.prompt_scores
