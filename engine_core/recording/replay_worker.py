"""A worker for replays: it knows which sequence each row is, and answers with what that became."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine_core.recording.reconstructed_requests import Stories
from engine_core.request import NO_TOKEN, Request
from engine_core.step.plan import NewRow, Plan
from engine_core.step.result import Result
from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.internal.v1.worker_pb2 import RowPromptLogprobs


@dataclass(slots=True)
class _Row:
    number: int
    index: int
    position: int  # of the next token, in the output
    prompt_len: int = 0
    prompt_next: int = 0  # position of the prompt whose log-probability comes next; 0: of none
    num_offers: int = 0  # of a beam


class _Answer(NamedTuple):
    plan: Plan
    token_ids: list[int]
    prompt_logprobs: list[RowPromptLogprobs]
    offers: list[int]


class ReplayedWorker:
    """Takes plans, and gives their results in order."""

    def __init__(self, stories: Stories) -> None:
        self._stories = stories
        self._numbers: dict[int, int] = {}  # of requests, by id() of their parameters
        self._rows: dict[int, _Row] = {}
        self._submitted: deque[_Answer] = deque()

    def expect(self, request: Request) -> None:
        """A request arrives; its handle is its number."""
        self._numbers[id(request.parameters)] = request.handle

    def number_of(self, new: NewRow) -> int:
        """The number of a row's request."""
        return self._numbers[id(new.parameters)]

    def submit(self, plan: Plan) -> None:
        """A plan is to be executed."""
        for row in plan.removed_rows:
            del self._rows[row]
        for new in plan.new_rows:
            position = len(new.token_ids) - new.prompt_len
            self._rows[new.row] = _Row(
                self.number_of(new),
                new.sequence_index,
                position,
                new.prompt_len,
                new.prompt_logprobs_start,
                new.num_beam_candidates,
            )
        for fork in plan.forks:
            source = self._rows[fork.source_row]
            self._rows[fork.row] = replace(source, index=fork.sequence_index, prompt_next=0)
        parts = list(self._score_prompts(plan))
        sampling = [self._rows[row] for row in plan.sample_rows]
        offers = [0] * sum(row.num_offers for row in sampling)  # a replayed search does not look at them
        self._submitted.append(_Answer(plan, list(map(self._sample, sampling)), parts, offers))

    def collect(self, without_token: "tuple[int, ...]" = (), duration_us: int = 0) -> Result:
        """The result of the oldest plan. without_token: entries that have NO_TOKEN."""
        answer = self._submitted.popleft()
        for entry in without_token:
            answer.token_ids[entry] = NO_TOKEN
        return Result(
            answer.plan.step,
            answer.token_ids,
            duration_us,
            prompt_logprobs=answer.prompt_logprobs,
            beam_token_ids=answer.offers,
            beam_logprobs=answer.offers,
        )

    def _score_prompts(self, plan: Plan) -> Iterator[RowPromptLogprobs]:
        """As many log-probabilities of prompts as a worker would give, all 0."""
        for row_id, start, count in zip(plan.rows, plan.starts, plan.counts, strict=True):
            row = self._rows[row_id]
            end = min(start + count + 1, row.prompt_len)
            if 0 < row.prompt_next < end:
                zeros = bytes(4 * (end - row.prompt_next))
                columns = LogprobColumns(logprobs=zeros, ranks=zeros)
                yield RowPromptLogprobs(row=row_id, start=row.prompt_next, columns=columns)
                row.prompt_next = end

    def _sample(self, row: _Row) -> int:
        if row.num_offers:
            return 0
        token = self._stories.token(row.number, row.index, row.position)
        row.position += 1
        return token
