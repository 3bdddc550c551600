"""A worker for replays: it answers each plan with the tokens that the recorded sequences had."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from engine_core.recording.plans import requests_of
from engine_core.request import NO_TOKEN, Request
from engine_core.scheduler.states.beam_group import BeamGroup
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.internal.v1.worker_pb2 import RowPromptLogprobs, StepResult
from pagewire.ipc.columns import unpack_u32
from pagewire_replay.beams import Candidates
from pagewire_replay.reconstructed_requests import ReconstructedRequests


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

    def __init__(self, requests: ReconstructedRequests, states: SequenceStates) -> None:
        """requests: their handles are their numbers. states: of the scheduler whose plans are executed."""
        self._recorded, self._states = requests, states
        self._rows: dict[int, _Row] = {}
        self._submitted: deque[_Step] = deque()

    def submit(self, plan: Plan) -> None:
        """Applies the changes of the scheduler's last plan to the rows, and computes it."""
        requests = requests_of(plan, self._states)
        for row in plan.removed_rows:
            del self._rows[row]
        for new in plan.new_rows:
            position = len(new.token_ids) - new.prompt_len
            self._rows[new.row] = _Row(
                requests[new.row],
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

    def collect(self, recorded: StepResult | None = None) -> Result:
        """Returns the result of the oldest plan. recorded: what is known of it; None: each entry gets as many
        tokens as planned."""
        step, known = self._submitted.popleft(), recorded or StepResult()
        counts = unpack_u32(known.sample_counts) or step.plan.sample_counts
        token_ids = [
            self._sample(row)
            for row, count in zip(step.sampling, counts or [1] * len(step.sampling), strict=True)
            for _ in range(count)
        ]
        if known.token_ids:
            pairs = zip(unpack_u32(known.token_ids), token_ids, strict=True)
            token_ids = [NO_TOKEN if given == NO_TOKEN else token for given, token in pairs]
        beams = [row for row in step.sampling if row.num_candidates]
        requests = {row.request.handle: row.request for row in beams}
        by_beam = {handle: self._candidates(request) for handle, request in requests.items()}
        candidates = [
            pair
            for row in beams
            for pair in by_beam[row.request.handle].get(row.index) or [(0, 0.0)] * row.num_candidates
        ]
        pools = [entry for entry, row in enumerate(step.sampling) if row.request.pools]
        return Result(
            step.plan.step,
            token_ids,
            known.duration_us,
            sample_counts=counts,
            prompt_logprobs=step.prompt_logprobs,
            beam_token_ids=[token for token, _ in candidates],
            beam_logprobs=[logprob for _, logprob in candidates],
            vectors={entry: b"" for entry in pools if token_ids[entry] != NO_TOKEN},
            draft_counts=unpack_u32(known.draft_counts),
            next_draft_counts=unpack_u32(known.next_draft_counts),
            started_ns=known.started_ns,
            draft_prefill=known.draft_prefill,
            draft_methods=known.draft_methods,
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
        group = self._states.groups.get(request)
        if group is None:
            return {}
        assert isinstance(group, BeamGroup)
        if group.is_void:
            return {}
        indexes = [carrier.index for carrier in group.carriers]
        candidates = self._recorded.beam_candidates(request.handle, group.search)
        return dict(zip(indexes, candidates, strict=True))
