"""What a worker answers is held against the plan."""

import pytest

from engine_core.request import NO_TOKEN
from engine_core.step.plan import Plan
from engine_core.step.result import decode_result
from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.internal.v1.worker_pb2 import RowPromptLogprobs, StepResult
from pagewire.ipc.columns import pack_u32
from tests.logprob_columns import pack_f32

PLAN = Plan(step=7, sample_rows=[2, 5])


def answer(**fields: object) -> StepResult:
    values: dict[str, object] = dict(step=7, token_ids=pack_u32([10, 11]))
    return StepResult(**(values | fields))  # type: ignore[arg-type]


def test_a_plain_result() -> None:
    result = decode_result(answer(), PLAN)
    assert (result.step, result.token_ids, result.logprobs) == (7, [10, 11], None)


def test_a_result_with_everything() -> None:
    columns = LogprobColumns(logprobs=pack_f32([-1]), ranks=pack_u32([1]))
    message = answer(
        duration_us=3,
        started_ns=4,
        logprobs=columns,
        prompt_logprobs=[RowPromptLogprobs(row=1, start=2, columns=columns)],
        beam_token_ids=pack_u32([1, 2]),
        beam_logprobs=pack_f32([-0.5, -2]),
    )
    result = decode_result(message, PLAN)
    assert (result.duration_us, result.started_ns, result.logprobs) == (3, 4, columns)
    assert list(result.prompt_logprobs) == [RowPromptLogprobs(row=1, start=2, columns=columns)]
    assert (list(result.beam_token_ids), list(result.beam_logprobs)) == ([1, 2], [-0.5, -2])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"step": 8}, "answered by step 8"),
        ({"token_ids": pack_u32([1])}, "2 samples was answered by step 7, 1 tokens"),
        ({"token_ids": b"123"}, "bytes"),
        ({"beam_token_ids": pack_u32([1])}, "1 candidates of beams, 0 log-probabilities"),
    ],
)
def test_a_wrong_answer_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_result(answer(**fields), PLAN)


def test_log_probabilities_that_do_not_fit_one_another() -> None:
    bad = LogprobColumns(logprobs=pack_f32([-1]), ranks=pack_u32([1, 2]))
    with pytest.raises(ValueError, match="log-probabilities"):
        decode_result(answer(logprobs=bad), PLAN)
    with pytest.raises(ValueError, match="log-probabilities"):
        decode_result(answer(prompt_logprobs=[RowPromptLogprobs(row=1, start=2, columns=bad)]), PLAN)


def test_several_tokens_of_a_row():
    plan = Plan(step=1, sample_rows=[4, 7], sample_counts=[3, 2])
    message = StepResult(step=1, token_ids=pack_u32([10, 11, NO_TOKEN]), sample_counts=pack_u32([2, 1]))
    result = decode_result(message, plan)
    assert result.tokens_by_row() == [[10, 11], [NO_TOKEN]] and result.entries_with(NO_TOKEN) == [1]


@pytest.mark.parametrize("counts", [[4, 1], [0, 2], [3], [3, 2, 1]])
def test_counts_that_were_not_planned(counts: list[int]):
    plan = Plan(step=1, sample_rows=[4, 7], sample_counts=[3, 2])
    tokens = pack_u32([10] * sum(counts))
    message = StepResult(step=1, token_ids=tokens, sample_counts=pack_u32(counts))
    with pytest.raises(ValueError, match="planned"):
        decode_result(message, plan)
