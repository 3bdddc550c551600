"""What a worker answers is held against the plan."""

import pytest

from engine_core.step.plan import Plan
from engine_core.step.result import decode_result
from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.internal.v1.worker_pb2 import RowPromptLogprobs, StepResult
from pagewire.ipc.columns import pack_f32, pack_u32

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
