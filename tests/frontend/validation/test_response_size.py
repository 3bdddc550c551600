"""Answers that no message takes are refused before they are computed, and say how to ask for less."""

import pytest

from frontend.errors import InvalidRequest
from frontend.validation.defaults import check_answer_size, resolve
from frontend.validation.rules import Limits
from pagewire.ipc.logprob_columns import MAX_OUTPUT_VALUES
from pagewire.v1 import generation_pb2

VOCAB, CONTEXT, PROMPT = 100_000, 10_000, 1_000
LIMITS = Limits(VOCAB, CONTEXT, frozenset(), 1, 1)
DEFAULTS = generation_pb2.SamplingParams(temperature=1, n=1)


def check(
    *, in_one_message: bool = True, n: int = 1, max_tokens: int | None = None, **output: object
) -> None:
    request = generation_pb2.GenerateRequest(
        sampling=generation_pb2.SamplingParams(n=n),
        stopping=generation_pb2.StoppingCriteria(max_tokens=max_tokens),
        output=generation_pb2.OutputOptions(**output),  # type: ignore[arg-type]
    )
    resolved = resolve(request, DEFAULTS, LIMITS, seed=0)
    check_answer_size(request, resolved, PROMPT, LIMITS, in_one_message=in_one_message)


TOP_20 = generation_pb2.LogprobOptions(top_n=20)
ALL = generation_pb2.LogprobOptions(all=True)


def test_what_fits() -> None:
    check(n=64)
    check(n=20, logprobs=TOP_20)
    check(max_tokens=MAX_OUTPUT_VALUES // (VOCAB + 1), logprobs=ALL)
    check(n=64, logprobs=TOP_20, in_one_message=False)


@pytest.mark.parametrize(
    "asked",
    [
        {"n": 23, "logprobs": TOP_20},
        {"n": 12, "logprobs": TOP_20, "token_bytes": True},
        {"max_tokens": MAX_OUTPUT_VALUES // (VOCAB + 1) + 1, "logprobs": ALL},
        {"logprobs": ALL, "in_one_message": False},
        {"max_tokens": 5, "logprobs": ALL, "prompt_logprobs": generation_pb2.LogprobOptions(top_n=4000)},
    ],
)
def test_what_does_not(asked: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check(**asked)  # type: ignore[arg-type]
    assert {*refusal.value.violations} == {"output.logprobs"}
    assert "stopping.max_tokens" in refusal.value.message
