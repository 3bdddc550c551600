"""Which call a request runs for: none for a while, or a later one that submits it again.

A request whose client chose its id, and so may submit it again, goes on for a grace when no call has it: the
client, its connection or its frontend is gone. A submit of the same id and content takes it over in that
time; a cancelled call looks like a broken connection, so it has the grace, too. What ends within the grace is
kept until its end. A tenant has a bounded number of such requests; they count for its quotas like any other.

A request in flight that is submitted again goes on for the call that submitted it last. It is the same
request if id and content are equal; see the frontend's identify(). The call that had it is told, if there is
one, and the new one is sent what it lacks, by position: nothing is computed again. What cannot be sent once
more is computed once more, with what the prefix cache has: tokens of a client that holds more, or other ones,
than the core; log-probabilities that were not kept (see score_history.py); sequences that ended by their text
before this core had the request; the output of a request that was submitted MOST_HANDOVERS times before.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import count, groupby
from math import inf
from operator import itemgetter
from typing import NamedTuple

from engine_core.context import NOWHERE, CoreContext
from engine_core.errors import Code, Refused
from engine_core.intake.validation import deadline_of, disconnect_grace_of, read_delivered, submitted_at
from engine_core.request import FinishReason, Request, Sequence, Status
from engine_core.scheduler.outputs.outputs import NO_DRAFT, Outputs, Scores, Start, encode_outputs
from engine_core.score_history import ScoreHistory
from pagewire.internal.v1.engine_pb2 import AddRequest, EngineMessage
from pagewire.ipc.logprob_columns import split

MOST_PER_TENANT = 64
"""Detached requests of one tenant; one more that its client has left ends the oldest. (A frontend that dies
leaves as many as it had.)"""
MOST_HANDOVERS = 16
"""Calls that take over one request. Each of them may be sent all of the output once more, which no quota
counts; a further one has it computed again, which quotas do."""
REASON = "CONTINUED_ELSEWHERE"
_TEXT = "the request goes on in a later call with the same request_id"
Delivered = dict[int, "array[int]"]


class _Detached(NamedTuple):
    request: Request
    sequences: tuple[Sequence, ...]  # which the request does not hold any more once it has ended
    until: float  # seconds on the core's clock
    is_refunded: bool


class DetachedRequests:
    """The detached requests of a core, also those that have ended since."""

    def __init__(self, context: CoreContext, refund: Callable[[Request], None]) -> None:
        """refund: takes a request that ended through no fault of its tenant."""
        self._scheduler = context.scheduler
        self._clock = context.clock
        self._refund = refund
        self._by_id: dict[str, _Detached] = {}
        self._of_tenants: dict[str, dict[str, None]] = {}  # ids, the oldest first
        self._handles = count(1)
        self._next_end = inf

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, request_id: str) -> Request | None:
        """Returns the detached request with this id, with its sequences."""
        detached = self._by_id.get(request_id)
        if detached is None:
            return None
        if not detached.request.num_live:
            detached.request.sequences[:] = detached.sequences
        return detached.request

    def detach(self, request: Request, *, is_refunded: bool = False) -> None:
        """Takes a request in flight from its frontend; it ends after its grace, or at once if it has none.

        is_refunded: its tenant need not pay twice for it; the frontend is gone, not the client.
        """
        if not (request.owner.disconnect_grace and request.owner.content):
            self._end(_Detached(request, (), 0.0, is_refunded))
            return
        self._scheduler.requests.move(request, NOWHERE, next(self._handles))
        until = self._clock() + request.owner.disconnect_grace
        self._by_id[request.request_id] = _Detached(request, tuple(request.sequences), until, is_refunded)
        self._next_end = min(self._next_end, until)
        of_tenant = self._of_tenants.setdefault(request.tenant, {})
        of_tenant[request.request_id] = None
        if len(of_tenant) > MOST_PER_TENANT and not is_refunded:
            self.end(self._by_id[next(iter(of_tenant))].request)

    def attach(self, request: Request, frontend: bytes, handle: int) -> None:
        """Gives a detached request to a call. One that has ended is to be dropped with its sequences."""
        self._forget(request)
        if request.num_live:
            self._scheduler.requests.move(request, frontend, handle)
        request.frontend, request.handle = frontend, handle

    def end(self, request: Request) -> None:
        """Ends a detached request."""
        self._end(self._forget(request))

    def review(self) -> None:
        """Ends requests whose grace is over. To be called in every step."""
        if self._next_end == inf or (now := self._clock()) < self._next_end:
            return
        for detached in [each for each in self._by_id.values() if each.until <= now]:
            self.end(detached.request)
        self._next_end = min((each.until for each in self._by_id.values()), default=inf)

    def _forget(self, request: Request) -> _Detached:
        of_tenant = self._of_tenants[request.tenant]
        del of_tenant[request.request_id]
        if not of_tenant:
            del self._of_tenants[request.tenant]
        return self._by_id.pop(request.request_id)

    def _end(self, detached: _Detached) -> None:
        if detached.request.num_live:
            self._scheduler.abort(detached.request)
        detached.request.sequences.clear()
        if detached.is_refunded:
            self._refund(detached.request)


def keep_scores(outputs: Outputs) -> None:
    """Keeps the log-probabilities of requests that another call may take over."""
    for scores in outputs.scores:
        if not any(outputs.sequences[entry].request.owner.disconnect_grace for entry in scores.entries):
            continue
        tokens = zip(scores.entries, split(scores.columns), strict=True)
        for entry, own in groupby(tokens, key=itemgetter(0)):
            sequence, position = outputs.sequences[entry], outputs.positions[entry]
            if sequence.request.owner.disconnect_grace:
                sequence.scores = sequence.scores or ScoreHistory(position)
                sequence.scores.add(position, (columns for _, columns in own))
    for request, start, columns in outputs.prompt_parts:
        if (owner := request.owner).disconnect_grace:
            owner.prompt_scores = owner.prompt_scores or ScoreHistory(start)
            owner.prompt_scores.add(start, split(columns))


class Handover:
    """Gives requests in flight to their last submitters."""

    def __init__(self, context: CoreContext, detached: DetachedRequests) -> None:
        self._context = context
        self._scheduler = context.scheduler
        self._detached = detached

    def take(self, message: AddRequest, frontend: bytes, arrival: float) -> bool:
        """Gives a request in flight to the sender of the message, if it is the same.

        Returns False where the message is to be admitted like any other. Raises Refused when a later call
        than this one has the request: an earlier call is sent again when a core is lost.
        """
        detached = self._detached.find(message.request_id)
        request = detached or self._scheduler.requests.by_id(message.request_id)
        if request is None or not request.owner.content or request.owner.content != message.content_digest:
            if detached is not None:
                self._detached.end(detached)  # its client has another request now
            return False
        if detached is None and submitted_at(message, arrival) < request.owner.submitted:
            raise Refused("", _TEXT, REASON, Code.ABORTED)
        limits = self._context.identity.limits
        delivered = read_delivered(message, len(request.prompt), len(request.sequences), limits)
        goes_on = request.owner.num_handovers < MOST_HANDOVERS and _can_go_on(request, message, delivered)
        self._context.counters.handovers[str(goes_on).lower()] += 1
        if detached is None:
            self._context.fail(request.frontend, request.handle, Code.ABORTED, REASON, _TEXT)
        if not goes_on:
            (self._detached.end if detached else self._scheduler.abort)(request)
            return False
        move = self._detached.attach if detached else self._scheduler.requests.move
        move(request, frontend, message.handle)
        self._renew(request, message, arrival)
        self._send_so_far(request, message, delivered)
        self.end_delivered(request, message)
        if not request.num_live:
            request.sequences.clear()
        return True

    def end_delivered(self, request: Request, message: AddRequest) -> None:
        """Ends the sequences of which a call has the end already, and this core perhaps not all tokens."""
        if message.ended_indexes and request.num_live:
            ended = frozenset(message.ended_indexes)
            request.owner.ended_elsewhere |= ended
            self._scheduler.abort(request, ended)

    def _renew(self, request: Request, message: AddRequest, arrival: float) -> None:
        """Gives a request the terms of the call that a message is about."""
        owner = request.owner
        owner.num_handovers += 1
        owner.submitted, owner.disconnect_grace = submitted_at(message, arrival), disconnect_grace_of(message)
        if request.num_live:
            self._scheduler.set_deadline(request, deadline_of(message, arrival))

    def _send_so_far(self, request: Request, message: AddRequest, delivered: Delivered) -> None:
        """Sends what the new call does not have."""
        outputs = Outputs()
        if request.scheduled:
            outputs.started.append(Start(request, 0.0, request.history.num_cached_tokens))
        if (start := _missing_prompt_scores(request, message)) is not None:
            assert request.owner.prompt_scores is not None
            columns = request.owner.prompt_scores.between(start, _num_prompt_scores(request))
            assert columns is not None
            outputs.add_prompt_part(request, start, columns)
        for sequence in request.sequences if request.beam_search is None else ():
            position, end = len(delivered.get(sequence.index, ())), len(sequence.output)
            has_ended = sequence.status is Status.ENDED
            if sequence.index in message.ended_indexes or not (has_ended or end > position):
                continue
            entry = outputs.add_run(sequence, position, NO_DRAFT)
            if has_ended and sequence.finish()[0] is not FinishReason.NONE:  # else its text ends it
                outputs.finishes[entry] = sequence.finish()
            if request.parameters.logprobs is not None and end > position:
                assert sequence.scores is not None
                columns = sequence.scores.between(position, end)
                assert columns is not None
                outputs.scores.append(Scores([entry] * (end - position), columns))
        if outputs:
            epoch = self._context.identity.epoch
            for frontend, part in encode_outputs(outputs, epoch, self._scheduler.step):
                self._context.send(frontend, EngineMessage(step_outputs=part))


def _can_go_on(request: Request, message: AddRequest, delivered: Delivered) -> bool:
    """Returns whether the core can send all that a call lacks which has this output already."""
    start = _missing_prompt_scores(request, message)
    if start is not None and not _holds(request.owner.prompt_scores, start, _num_prompt_scores(request)):
        return False
    pending = request.prompt_logprobs
    if pending is not None and not 0 < _first_prompt_score(message) <= pending.next:
        return False
    if request.beam_search is not None:
        return request.num_live > 0 and not delivered  # results are sent at the end
    if not request.num_live and any(each.finish()[0] is FinishReason.NONE for each in request.sequences):
        return False  # it was aborted, or a text ended one of its sequences
    return all(
        sequence.index in message.ended_indexes
        or _has_what_follows(sequence, delivered.get(sequence.index, array("I")))
        for sequence in request.sequences
    )


def _has_what_follows(sequence: Sequence, delivered: array[int]) -> bool:
    """Returns whether the output of a sequence behind these tokens can be sent."""
    position, end = len(delivered), len(sequence.output)
    if sequence.output[:position] != delivered:
        return False
    if sequence.index in sequence.request.owner.ended_elsewhere:
        return False
    if sequence.request.parameters.logprobs is None or position == end:
        return True
    return _holds(sequence.scores, position, end)


def _missing_prompt_scores(request: Request, message: AddRequest) -> int | None:
    """Returns the first position of the prompt whose log-probability was sent, but not to this call."""
    start = _first_prompt_score(message)
    return start if 0 < start < _num_prompt_scores(request) else None


def _first_prompt_score(message: AddRequest) -> int:
    """Returns the first position of the prompt whose log-probability a call lacks; 0: it lacks none."""
    return max(message.prompt_logprobs_start, 1) if message.HasField("prompt_logprobs") else 0


def _num_prompt_scores(request: Request) -> int:
    """Returns up to which position of the prompt log-probabilities were sent, if any are wanted."""
    return len(request.prompt) if request.prompt_logprobs is None else request.prompt_logprobs.next


def _holds(history: ScoreHistory | None, start: int, end: int) -> bool:
    return history is not None and history.between(start, end) is not None
