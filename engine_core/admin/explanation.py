"""Explains one request: its sequences, the requests that share its blocks, its place in the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from operator import eq

from engine_core.admin.requests import cost_of, describe, phase_of_sequence, put_seconds
from engine_core.intake.deadlines import predicted_wait
from engine_core.request import Request, Sequence, Status
from engine_core.scheduler.scheduler import Scheduler
from pagewire.v1 import inspection_pb2 as pb

MAX_SEQUENCES = 128
MAX_SHARERS = 32
_COMPARED_SEQUENCES = 4
"""Siblings have the prompt in common: what one of them shares with other requests, the others do too."""
_COMPARED_PER_UNIT = 32
"""Entries of two block tables that are compared in a microsecond."""
_POSITION_COST = 300
"""Microseconds to find the place in the queue, at most."""


def explain(
    scheduler: Scheduler, request_id: str, result: pb.ExplainRequestResponse, now: float
) -> Generator[int, None, None]:
    """Fills the result, without a request where none has the id; yields work done, in microseconds."""
    result.SetInParent()
    request = scheduler.requests.by_id(request_id)
    if request is None:
        return
    describe(request, scheduler.states, now, result.request)
    _put_sequences(request, scheduler, result)
    yield cost_of(request)
    if _put_position(request, scheduler, result):
        yield _POSITION_COST
    sharers: Counter[Request] = Counter()
    for other in list(scheduler.states.holders()):
        compared = 0
        if other.request is not request and other.blocks:
            for own in request.sequences[:_COMPARED_SEQUENCES]:
                compared += min(len(own.blocks), len(other.blocks))
                # Shared blocks are of common prefixes, so they have equal places in both tables.
                if shared := sum(map(eq, own.blocks, other.blocks)):
                    sharers[other.request] = max(sharers[other.request], shared)
        yield 1 + compared // _COMPARED_PER_UNIT
    result.num_sharers = len(sharers)
    for sharer, blocks in sharers.most_common(MAX_SHARERS):
        result.sharers.add(request_id=sharer.request_id, blocks=blocks)


def _put_sequences(request: Request, scheduler: Scheduler, result: pb.ExplainRequestResponse) -> None:
    live = [sequence for sequence in request.sequences if sequence.status is not Status.ENDED]
    for sequence in live[:MAX_SEQUENCES]:
        result.sequences.add(
            index=sequence.index,
            phase=phase_of_sequence(sequence, scheduler.states),
            tokens=sequence.num_tokens,
            computed_tokens=sequence.num_computed_tokens,
            output_tokens=len(sequence.output),
            blocks=len(sequence.blocks),
        )
    result.swapped_tokens = sum(map(scheduler.swap.num_tokens, live))


def _put_position(request: Request, scheduler: Scheduler, result: pb.ExplainRequestResponse) -> bool:
    """Writes the place of a request of which a sequence waits in the queue; returns whether one does."""
    first = _first_waiting(request, scheduler)
    if first is None:
        return False
    ahead = scheduler.waiting.before(first, scheduler.throughput.run_steps.value)
    position = result.position
    position.sequences_ahead, position.tokens_ahead = round(ahead.sequences), round(ahead.tokens)
    position.tenant_share = scheduler.waiting.share(request.tenant).part
    if scheduler.throughput.turnover_seconds is not None:
        put_seconds(position.predicted_wait, predicted_wait(request, scheduler, ahead))
    return True


def _first_waiting(request: Request, scheduler: Scheduler) -> Sequence | None:
    if request in scheduler.states.preparing:
        return None
    return next((each for each in request.sequences if each.status is Status.WAITING), None)
