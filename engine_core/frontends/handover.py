"""A request in flight that is submitted again goes on for the call that submitted it last.

It is the same request if id and content are equal; see frontend/streams/identity.py. The call that had it is
told, and the new one is sent what it lacks, by position: nothing is computed again. What cannot be sent once
more is computed once more, with what the prefix cache has: tokens whose log-probabilities were requested,
those of a client that holds more, or other ones, than the core, and requests of which a sequence ended by its
text, which the core does not know.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection

from engine_core.counters import Counters
from engine_core.errors import Code, Refused
from engine_core.intake.validation import Limits, deadline_of, read_delivered, submitted_at
from engine_core.io.error_replies import ErrorReplies
from engine_core.request import FinishReason, Request, Status
from engine_core.scheduler.outputs import NO_DRAFT, Outputs, Start, encode_outputs
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import AddRequest, EngineMessage

REASON = "CONTINUED_ELSEWHERE"
_TEXT = "the request goes on in a later call with the same request_id"

Delivered = dict[int, "array[int]"]


class Handover:
    """Gives requests in flight to their last submitters."""

    def __init__(
        self,
        scheduler: Scheduler,
        limits: Limits,
        replies: ErrorReplies,
        counters: Counters,
        epoch: int,
        send: Callable[[bytes, EngineMessage], None],
    ) -> None:
        """send: see EngineCore."""
        self._scheduler = scheduler
        self._limits = limits
        self._replies = replies
        self._counters = counters
        self._epoch = epoch
        self._send = send

    def take(self, message: AddRequest, frontend: bytes, arrival: float) -> bool:
        """Gives a request in flight to the sender of the message, if it is the same.

        Returns False where the message is to be admitted like any other. Raises Refused when a later call
        than this one has the request: an earlier call is sent again when a core is lost.
        """
        request = self._scheduler.requests.by_id(message.request_id)
        if request is None or not request.content or request.content != message.content_digest:
            return False
        if submitted_at(message, arrival) < request.submitted:
            raise Refused("", _TEXT, REASON, Code.ABORTED)
        delivered = read_delivered(message, len(request.prompt), len(request.sequences), self._limits)
        goes_on = _can_go_on(request, message, delivered)
        self._counters.handovers[str(goes_on).lower()] += 1
        self._replies.fail(request.frontend, request.handle, Code.ABORTED, REASON, _TEXT)
        if not goes_on:
            self._scheduler.abort(request)
            return False
        self._scheduler.requests.move(request, frontend, message.handle)
        request.submitted = submitted_at(message, arrival)
        self._scheduler.set_deadline(request, deadline_of(message, arrival))
        self._send_so_far(request, delivered, message.ended_indexes)
        if message.ended_indexes:
            self._scheduler.abort(request, frozenset(message.ended_indexes))
        return True

    def _send_so_far(self, request: Request, delivered: Delivered, ended: Collection[int]) -> None:
        """Sends the output that the new call does not have."""
        outputs = Outputs()
        if request.scheduled:
            outputs.started.append(Start(request, 0.0, request.history.num_cached_tokens))
        for sequence in request.sequences if request.beam_search is None else ():
            position = len(delivered.get(sequence.index, ()))
            has_ended = sequence.status is Status.ENDED
            if sequence.index in ended or not (has_ended or len(sequence.output) > position):
                continue
            entry = outputs.add_run(sequence, position, NO_DRAFT)
            if has_ended:
                outputs.finishes[entry] = sequence.finish()
        if outputs:
            for frontend, part in encode_outputs(outputs, self._epoch, self._scheduler.step):
                self._send(frontend, EngineMessage(step_outputs=part))


def _can_go_on(request: Request, message: AddRequest, delivered: Delivered) -> bool:
    """Returns whether the core can send all that a call lacks which has this output already."""
    pending = request.prompt_logprobs
    if message.HasField("prompt_logprobs") != (pending is not None):
        return False
    if pending is not None and pending.next != max(message.prompt_logprobs_start, 1):
        return False
    if request.beam_search is not None:
        return not delivered  # results are sent at the end
    for sequence in request.sequences:
        has = delivered.get(sequence.index, array("I"))
        if sequence.index in message.ended_indexes:
            continue
        if sequence.output[: len(has)] != has:
            return False
        if sequence.status is Status.ENDED and sequence.finish()[0] is FinishReason.NONE:
            return False  # a frontend ended it by its text, of which the core need not have all tokens
        if request.parameters.logprobs is not None and len(sequence.output) > len(has):
            return False
    return True
