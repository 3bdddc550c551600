"""Log-probabilities without a model: the formula, and that it is a distribution."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from pagewire_simulated.platform import SimulatedPlatform
from pagewire_simulated.scores import logprob_reference
from tests.logprob_columns import EVERYTHING, Scored, listed, take_apart, top
from tests.worker.fakes import resolved_params
from worker.load import load

V = 320
PROMPT = [5, 100, 33, 210, 7, 8, 9, 9, 9, 250]


def plan(step: int, **columns: Any) -> worker_pb2.StepPlan:
    """Lists of integers become columns."""
    packed = {
        name: value if name in ("new_rows", "forks") else pack_u32(value) for name, value in columns.items()
    }
    return worker_pb2.StepPlan(step=step, **packed)


def run(
    initialize: worker_pb2.Initialize, chunks: list[int], **requests: Any
) -> tuple[list[int], list[Scored]]:
    """PROMPT in such chunks, and three tokens more: all tokens, and the scores from position 1 on."""
    runner, _ = load(initialize, SimulatedPlatform(WorkerConfig()))
    new = worker_pb2.NewRow(
        row=0,
        token_ids=pack_u32(PROMPT),
        prompt_len=10,
        blocks=pack_u32(range(8)),
        sampling=resolved_params(temperature=1, seed=4),
        prompt_logprobs_start=1,
        **requests,
    )
    tokens, scores, start = list(PROMPT), list[Scored](), 0
    for step, count in enumerate([*chunks, 1, 1]):
        samples = [0] if start + count == len(tokens) else []
        columns = {
            "rows": [0],
            "starts": [start],
            "counts": [count],
            "sample_rows": samples,
            "sample_sources": samples,
        }
        result = runner.execute(plan(step, new_rows=[new] if not step else [], **columns))
        for part in result.prompt_logprobs:
            assert part.start == 1 + len(scores)
            scores += take_apart(part.columns)
        scores += take_apart(result.logprobs)
        tokens += unpack_u32(result.token_ids)
        start += count
    return tokens, scores


@pytest.mark.parametrize("chunks", [[10], [1, 4, 5], [9, 1]])
def test_equals_the_formula(chunks: list[int], initialize: Callable[..., worker_pb2.Initialize]) -> None:
    """Of prompt and output, by the same tokens before."""
    tokens, scores = run(initialize(), chunks, logprobs=top(3), prompt_logprobs=top(3))
    assert len(tokens) == 13 and len(scores) == 12
    for place, scored in enumerate(scores, start=1):
        logprob, rank = logprob_reference(tokens[:place], tokens[place], V)
        assert (scored.logprob, scored.rank) == (pytest.approx(logprob, rel=1e-6), rank)
        assert scored.ranks == [1, 2, 3]
        for token, candidate in zip(scored.ids, scored.logprobs, strict=True):
            assert candidate == pytest.approx(logprob_reference(tokens[:place], token, V)[0], rel=1e-6)


def test_all_is_a_distribution(initialize: Callable[..., worker_pb2.Initialize]) -> None:
    _, scores = run(initialize(), [10], logprobs=EVERYTHING, prompt_logprobs=listed(7, 3))
    for scored in scores[:9]:
        assert scored.ids == [7, 3]
    for scored in scores[9:]:
        assert scored.ids == list(range(V))
        assert sorted(scored.ranks) == list(range(1, V + 1))
        assert sum(map(math.exp, scored.logprobs)) == pytest.approx(1, abs=1e-5)


def test_prompts_are_paid_for(initialize: Callable[..., worker_pb2.Initialize]) -> None:
    """The head computes logits for every position."""
    runner, _ = load(initialize(profile="cpu"), SimulatedPlatform(WorkerConfig()))
    times = []
    for request in (None, top(0)):
        new = worker_pb2.NewRow(
            row=0,
            token_ids=pack_u32(random.Random(1).choices(range(V), k=60)),
            prompt_len=60,
            blocks=pack_u32(range(15)),
            sampling=resolved_params(),
            prompt_logprobs=request,
            prompt_logprobs_start=1,
        )
        result = runner.execute(
            plan(1, new_rows=[new], rows=[0], starts=[0], counts=[60], sample_rows=[0], sample_sources=[0])
        )
        times.append(result.duration_us)
        runner.execute(plan(2, removed_rows=[0]))
    assert times[0] < times[1]
