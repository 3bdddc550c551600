"""Ends of requests: by their clients, by the clock, by a fault, and by their own last token.

Every end goes through SequenceStates.end(); what differs is whether the frontend is told, and how.
"""

from __future__ import annotations

from collections.abc import Collection

from engine_core.request import FinishReason, Request, Sequence, Status
from engine_core.scheduler.states.sequence_states import SequenceStates


class RequestEnds:
    """Ends requests and sequences, and reports the reason where the frontend does not know it."""

    def __init__(self, states: SequenceStates) -> None:
        self._states = states

    def abort(self, request: Request, indexes: Collection[int] = ()) -> None:
        """Ends some sequences of a request (none named: all) without output."""
        if not request.num_live:
            return
        ended = self._states.groups[request].ended_by(indexes)
        for sequence in followers_first(request):
            if sequence.index in ended:
                self._states.end(sequence)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Ends a request, and reports the reason to its frontend."""
        if not request.num_live:
            return
        results = self._states.groups[request].results()
        if results is not None:
            self._states.outputs.finish_group(request, results, reason)
        for sequence in followers_first(request):
            if results is not None:
                self._states.end(sequence)
            else:
                self.finish_sequence(sequence, reason)

    def expire(self, now: float) -> None:
        """Ends requests at their time limit with the output so far, and aborts those past their deadline."""
        for request, has_time_limit in self._states.timeouts.due(now):
            if has_time_limit:
                self.finish(request, FinishReason.TIME_LIMIT)
            else:
                self.abort(request)

    def finish_sequence(self, sequence: Sequence, reason: FinishReason, token: int = 0) -> None:
        """Ends a sequence without another token, and reports it to its frontend."""
        if sequence.status is not Status.ENDED:
            self._states.outputs.finish(sequence, reason, token)
            self._states.end(sequence)


def followers_first(request: Request) -> list[Sequence]:
    """Returns the sequences in an order in which no sibling is promoted that is about to end as well."""
    return request.sequences[::-1]
