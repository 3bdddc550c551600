"""Log-probabilities of prompts on their way from workers to frontends: in order, without gap or overlap.

A request wants those of its prompt from some position on. Whichever of its sequences computes the prompt
asks the worker for what has not come yet; parts come with the results of its steps. When it is preempted,
or ends and another one takes the lead, what was under way still comes, so that a part may bring again
what another one has brought: the overlap is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine_core.request import Request, Sequence, Status
from engine_core.scheduler.outputs import Outputs
from engine_core.step.plan import NewRow
from pagewire.internal.v1.worker_pb2 import RowPromptLogprobs
from pagewire.ipc.logprob_columns import num_tokens, pick

PromptRows = Mapping[int, Request]
"""Rows of which a plan's result may bring something, and whose prompts they compute."""

_NO_ROWS: PromptRows = {}


class PromptLogprobs:
    """Of one scheduler. A request that wants none costs it nothing."""

    def __init__(self) -> None:
        self._computing: list[Sequence] = []  # in their prompts, or ended or preempted since planned()

    def admit(self, sequence: Sequence, new_row: NewRow) -> None:
        """A sequence begins: it asks for what its request still wants."""
        wish = sequence.request.prompt_logprobs
        if wish is not None:
            new_row.prompt_logprobs, new_row.prompt_logprobs_start = wish.options, wish.next
            self._computing.append(sequence)

    def planned(self) -> PromptRows:
        """A plan is made, in which every sequence here goes on with its prompt."""
        if not self._computing:
            return _NO_ROWS
        running = [sequence for sequence in self._computing if sequence.status is Status.RUNNING]
        self._computing = [s for s in running if s.num_computed_tokens < len(s.request.prompt)]
        return {sequence.row: sequence.request for sequence in running}

    def update(self, parts: Iterable[RowPromptLogprobs], rows: PromptRows, outputs: Outputs) -> None:
        """The result of that plan has come."""
        for part in parts:
            request = rows[part.row]
            wish = request.prompt_logprobs
            if wish is None or not request.num_live:
                continue
            count, known = num_tokens(part.columns), wish.next - part.start
            assert known >= 0, "a part of the prompt was left out"
            if known < count:
                outputs.add_prompt_part(request, wish.next, pick(part.columns, range(known, count)))
                wish.next = part.start + count
            if wish.next == len(request.prompt):
                request.prompt_logprobs = None
