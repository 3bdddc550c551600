"""Which parts of which prompts a step gives."""

from typing import Any

import numpy as np
import pytest

from pagewire.internal.v1 import worker_pb2
from tests.logprob_columns import EVERYTHING, listed, top
from worker.sampling.logprobs.messages import LogprobCandidates, LogprobRequests
from worker.step.rows import PlanError


def requests_with(prompt_len: int = 10, **fields: Any) -> LogprobRequests:
    """Row 3 begins with these fields of NewRow."""
    requests = LogprobRequests(100)
    requests.add_row(3, worker_pb2.NewRow(row=3, **fields), [0] * prompt_len, [])
    return requests


def parts(requests: LogprobRequests, start: int, count: int) -> list[tuple[int, int, int]]:
    """(offset, start, end) of what row 3 gives when it computes so many tokens behind another row."""
    found = requests.prompt_parts(np.array([1, 3]), np.array([0, start]), np.array([5, count]))
    assert all((part.index, part.row) == (1, 3) for part in found)
    return [(part.offset, part.start, part.end) for part in found]


def test_chunks_give_the_positions_after_theirs() -> None:
    """The last token's logits are not about the prompt."""
    requests = requests_with(prompt_logprobs=top(2), prompt_logprobs_start=1)
    assert parts(requests, 0, 4) == [(0, 1, 5)]
    assert parts(requests, 4, 1) == [(0, 5, 6)]
    assert parts(requests, 5, 5) == [(0, 6, 10)]
    assert parts(requests, 10, 1) == []


def test_positions_before_the_start_are_left_out() -> None:
    requests = requests_with(prompt_logprobs=top(0), prompt_logprobs_start=7)
    assert parts(requests, 2, 3) == []
    assert parts(requests, 5, 4) == [(1, 7, 10)]
    assert parts(requests, 9, 1) == []


def test_a_row_that_begins_behind_the_start_is_refused() -> None:
    requests = requests_with(prompt_logprobs=top(0), prompt_logprobs_start=4)
    with pytest.raises(PlanError, match="leaves out"):
        parts(requests, 4, 3)


def test_forks_inherit_what_is_for_the_output_alone() -> None:
    requests = requests_with(logprobs=listed(4, 2), prompt_logprobs=EVERYTHING, prompt_logprobs_start=1)
    requests.fork_row(5, 3, 1)
    assert requests.sampled == {
        3: LogprobCandidates(token_ids=(4, 2)),
        5: LogprobCandidates(token_ids=(4, 2)),
    }
    assert not requests.prompt_parts(np.array([5]), np.array([0]), np.array([4]))
    requests.remove_row(3)
    requests.remove_row(5)
    assert not requests.sampled
    assert parts(requests, 0, 4) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": top(101)},
        {"logprobs": listed(1, 100)},
        {"prompt_logprobs": listed(100), "prompt_logprobs_start": 1},
        {"prompt_logprobs": top(1), "prompt_logprobs_start": 0},
    ],
)
def test_what_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        requests_with(**fields)


def test_a_start_behind_the_prompt_asks_for_nothing() -> None:
    requests = requests_with(prompt_len=4, prompt_logprobs=top(1), prompt_logprobs_start=4)
    assert parts(requests, 0, 4) == []
