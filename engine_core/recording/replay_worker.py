"""A worker for replays: it answers each plan with the tokens that the recorded sequences had."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine_core.beam_search.sequences import BeamGroup
from engine_core.recording.beams import Candidates
from engine_core.recording.reconstructed_requests import ReconstructedRequests
from engine_core.request import NO_TOKEN, Request
from engine_core.scheduler.states.sequence_group import SequenceGroup
from engine_core.step.plan import NewRow, Plan
from engine_core.step.result import Result
from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.internal.v1.worker_pb2 import RowPromptLogprobs


@dataclass(slots=True)
class _Row:
    request: Request
    index: int
    position: int  # of the next token, in the output
    prompt_len: int = 0
    prompt_next: int = 0  # position in the prompt whose log-probability is next; 0: none
    num_candidates: int = 0  # of a beam


@dataclass(frozen=True, slots=True)
class _Step:
    plan: Plan
    sampling: list[_Row]
    prompt_logprobs: list[RowPromptLogprobs]


class ReplayWorker:
    """Takes plans, and returns their results in order."""

    def __init__(self, requests: ReconstructedRequests, groups: Mapping[Request, SequenceGroup]) -> None:
        """groups: of the scheduler whose plans are executed."""
        self._recorded, self._groups = requests, groups
        self._requests: dict[int, Request] = {}  # by id() of their parameters
        self._rows: dict[int, _Row] = {}
        self._submitted: deque[_Step] = deque()

    def expect(self, request: Request) -> None:
        """Registers a request that arrives; its handle is its number."""
        self._requests[id(request.parameters)] = request

    def number_of(self, new: NewRow) -> int:
        """Returns the number of a row's request."""
        return self._requests[id(new.parameters)].handle

    def submit(self, plan: Plan) -> None:
        """Applies the changes of a plan to the rows, and computes it."""
        for row in plan.removed_rows:
            del self._rows[row]
        for new in plan.new_rows:
            position = len(new.token_ids) - new.prompt_len
            self._rows[new.row] = _Row(
                self._requests[id(new.parameters)],
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
        self._submitted.append(_Step(plan, sampling, parts))

    def collect(
        self, without_token: tuple[int, ...] = (), duration_us: int = 0, sample_counts: Sequence[int] = ()
    ) -> Result:
        """Returns the result of the oldest plan.

        without_token: entries that have NO_TOKEN. sample_counts: tokens of each entry; empty: as planned.
        """
        step = self._submitted.popleft()
        counts = sample_counts or step.plan.sample_counts
        samples = [
            [self._sample(row) for _ in range(count)]
            for row, count in zip(step.sampling, counts or [1] * len(step.sampling), strict=True)
        ]
        for entry in without_token:
            samples[entry][-1] = NO_TOKEN
        beams = [row for row in step.sampling if row.num_candidates]
        requests = {row.request.handle: row.request for row in beams}
        by_beam = {handle: self._candidates(request) for handle, request in requests.items()}
        candidates = [
            pair
            for row in beams
            for pair in by_beam[row.request.handle].get(row.index) or [(0, 0.0)] * row.num_candidates
        ]
        return Result(
            step.plan.step,
            [token for tokens in samples for token in tokens],
            duration_us,
            sample_counts=counts,
            prompt_logprobs=step.prompt_logprobs,
            beam_token_ids=[token for token, _ in candidates],
            beam_logprobs=[logprob for _, logprob in candidates],
            vectors={
                entry: b""
                for entry, row in enumerate(step.sampling)
                if row.request.pools and entry not in without_token
            },
        )

    def _score_prompts(self, plan: Plan) -> Iterator[RowPromptLogprobs]:
        """Returns as many log-probabilities of prompts as a worker would, all 0."""
        for row_id, start, count in zip(plan.rows, plan.starts, plan.counts, strict=True):
            row = self._rows[row_id]
            end = min(start + count + 1, row.prompt_len)
            if 0 < row.prompt_next < end:
                zeros = bytes(4 * (end - row.prompt_next))
                columns = LogprobColumns(logprobs=zeros, ranks=zeros)
                yield RowPromptLogprobs(row=row_id, start=row.prompt_next, columns=columns)
                row.prompt_next = end

    def _sample(self, row: _Row) -> int:
        if row.num_candidates or row.request.pools:
            return 0
        token = self._recorded.token(row.request.handle, row.index, row.position)
        row.position += 1
        return token

    def _candidates(self, request: Request) -> dict[int, Candidates]:
        """Returns candidates by sequence index; none where the search has ended or begun again."""
        group = self._groups.get(request)
        if group is None:
            return {}
        assert isinstance(group, BeamGroup)
        if group.is_void:
            return {}
        indexes = [carrier.index for carrier in group.carriers]
        candidates = self._recorded.beam_candidates(request.handle, group.search)
        return dict(zip(indexes, candidates, strict=True))
