"""Log-probabilities of prompts, passed from workers to frontends in order, without gap or overlap.

A request wants those of its prompt from some position on. The sequence that computes the prompt asks the
worker for those that have not been sent; parts come with the results of its steps. After a preemption, or
when a sibling becomes the leader, a part in flight still arrives, so that parts may overlap: what was sent
before is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine_core.request import Request, Sequence, Status
from engine_core.scheduler.outputs.outputs import Outputs
from engine_core.step.plan import NewRow
from pagewire.internal.v1.worker_pb2 import RowPromptLogprobs
from pagewire.ipc.logprob_columns import num_tokens, pick

PromptRows = Mapping[int, Request]
"""Rows for which the result of a plan may have log-probabilities, and their requests."""

_NO_ROWS: PromptRows = {}


class PromptLogprobs:
    """Pending prompt log-probabilities of a scheduler. Requests that want none cost nothing."""

    def __init__(self) -> None:
        self._computing: list[Sequence] = []  # their prompts, or ended or preempted since planned()

    def admit(self, sequence: Sequence, new_row: NewRow) -> None:
        """Adds what a request still wants to the row of its sequence."""
        pending = sequence.request.prompt_logprobs
        if pending is not None:
            new_row.prompt_logprobs, new_row.prompt_logprobs_start = pending.options, pending.next
            self._computing.append(sequence)

    def planned(self) -> PromptRows:
        """Returns the rows of a plan that compute such prompts."""
        if not self._computing:
            return _NO_ROWS
        running = [sequence for sequence in self._computing if sequence.status is Status.RUNNING]
        self._computing = [s for s in running if s.num_computed_tokens < len(s.request.prompt)]
        return {sequence.row: sequence.request for sequence in running}

    def update(self, parts: Iterable[RowPromptLogprobs], rows: PromptRows, outputs: Outputs) -> None:
        """Takes the log-probabilities in the result of a plan. rows: of planned()."""
        for part in parts:
            request = rows[part.row]
            pending = request.prompt_logprobs
            if pending is None or not request.num_live:
                continue
            count, known = num_tokens(part.columns), pending.next - part.start
            assert known >= 0, "a part of the prompt was left out"
            if known < count:
                outputs.add_prompt_part(request, pending.next, pick(part.columns, range(known, count)))
                pending.next = part.start + count
            if pending.next == len(request.prompt):
                request.prompt_logprobs = None
