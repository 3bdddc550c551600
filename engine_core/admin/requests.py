"""Describes requests in flight: lists them, and explains one with those that share its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from itertools import chain
from operator import eq, itemgetter

from google.protobuf.duration_pb2 import Duration

from engine_core.intake.overload import predicted_wait
from engine_core.request import Request, Sequence, Status
from engine_core.scheduler.outputs.wait_causes import Cause
from engine_core.scheduler.scheduler import Scheduler
from engine_core.scheduler.states.sequence_states import SequenceStates
from pagewire.host.clock import MONOTONIC_ORIGIN_NS
from pagewire.internal.v1.engine_pb2 import ListRequests
from pagewire.v1 import inspection_pb2 as pb

MAX_LISTED = 1001  # a page, and whether there is another one
_COST = 20
"""Microseconds to describe a request, without its blocks."""
_BLOCKS_PER_UNIT = 16
"""Blocks that are looked at in a microsecond."""
_CAUSES = {
    Cause.ROWS: pb.WAIT_CAUSE_ROWS,
    Cause.BLOCKS: pb.WAIT_CAUSE_BLOCKS,
    Cause.BUDGET: pb.WAIT_CAUSE_BUDGET,
    Cause.TRIAL: pb.WAIT_CAUSE_TRIAL,
    Cause.ADAPTER: pb.WAIT_CAUSE_ADAPTER,
    Cause.KV_TRANSFER: pb.WAIT_CAUSE_KV_TRANSFER,
    Cause.ENCODER: pb.WAIT_CAUSE_ENCODER,
}
MAX_SEQUENCES = 128
MAX_SHARERS = 32
_COMPARED_SEQUENCES = 4
"""Siblings have the prompt in common: what one of them shares with other requests, the others do too."""
_COMPARED_PER_UNIT = 32
"""Entries of two block tables that are compared in a microsecond."""
_POSITION_COST = 300
"""Microseconds to find the place in the queue, at most."""


def list_requests(
    states: SequenceStates, call: ListRequests, result: pb.ListRequestsResponse, now: float
) -> Generator[int, None, None]:
    """Fills the result with requests in order of arrival at their frontends; yields work done, in
    microseconds."""
    result.SetInParent()
    limit = min(call.limit, MAX_LISTED)
    tenant = call.tenant if call.HasField("tenant") else None
    requests = list(states.requests)
    result.total = len(requests) if tenant is None else states.requests.num_of_tenant(tenant)
    yield len(requests) // 64
    listed = []
    for request in requests:
        key = arrival_ns(request), request.request_id
        if key > (call.after.number, call.after.name) and tenant in (None, request.tenant):
            listed.append((key, request))
        yield 1
    listed.sort(key=itemgetter(0))  # almost sorted already
    yield len(listed) // 8
    for _, request in listed:
        if len(result.requests) >= limit:
            return
        if request.num_live:
            describe(request, states, now, result.requests.add())
            yield cost_of(request)


def arrival_ns(request: Request) -> int:
    """Returns when a request arrived at its frontend, in nanoseconds since 1970."""
    return MONOTONIC_ORIGIN_NS + round(1e9 * (request.arrival - request.history.age))


def cost_of(request: Request) -> int:
    """Returns what describe() costs, in microseconds."""
    num_blocks = sum(len(sequence.blocks) for sequence in request.sequences)
    return _COST + len(request.sequences) + num_blocks // _BLOCKS_PER_UNIT


def describe(request: Request, states: SequenceStates, now: float, info: pb.RequestInfo) -> None:
    """Fills in what the core knows of a live request. now: on the core's clock."""
    history = request.history
    info.request_id = request.request_id
    info.tenant = request.tenant
    info.priority = request.priority
    info.phase = phase_of(request, states)
    info.waits_for = _cause_of(info.phase, request, states)
    info.sequences = request.num_live
    info.running_sequences = request.num_running
    info.prompt_tokens = len(request.prompt)
    info.cached_prompt_tokens = history.num_cached_tokens
    info.output_tokens = sum(len(sequence.output) for sequence in request.sequences)
    put_seconds(info.age, now - request.arrival + history.age)
    info.arrival_time.FromNanoseconds(arrival_ns(request))
    info.blocks, info.shared_blocks = _count_blocks(request, states)
    info.preemptions = request.num_preemptions
    info.frontend = request.frontend.hex()
    info.trace_id = request.trace_id
    if request.owner.abort_at is not None:
        put_seconds(info.deadline, request.owner.abort_at - now)
    _put_timings(request, states, now, info)


def phase_of(request: Request, states: SequenceStates) -> pb.RequestPhase:
    """Returns where a live request is."""
    if request in states.preparing:
        return pb.REQUEST_PHASE_PREPARING
    if not request.num_running:
        return pb.REQUEST_PHASE_PREEMPTED if request.scheduled else pb.REQUEST_PHASE_QUEUED
    live = [sequence for sequence in request.sequences if sequence.status is not Status.ENDED]
    if all(sequence.num_tokens >= sequence.limit for sequence in live):
        return pb.REQUEST_PHASE_FINISHING
    computed = (s.num_computed_tokens for s in live if s.status is Status.RUNNING)
    is_prompt = max(computed, default=0) < len(request.prompt)
    return pb.REQUEST_PHASE_PREFILL if is_prompt else pb.REQUEST_PHASE_DECODE


def phase_of_sequence(sequence: Sequence, states: SequenceStates) -> pb.RequestPhase:
    """Returns where a live sequence is; one that waits for its leader's prompt is in its prompt too."""
    request = sequence.request
    if sequence.status is Status.WAITING:
        if request in states.preparing:
            return pb.REQUEST_PHASE_PREPARING
        return pb.REQUEST_PHASE_PREEMPTED if request.scheduled else pb.REQUEST_PHASE_QUEUED
    if sequence.status is Status.FORKING:
        return phase_of(request, states)
    if sequence.num_tokens >= sequence.limit:
        return pb.REQUEST_PHASE_FINISHING
    is_prompt = sequence.num_computed_tokens < len(request.prompt)
    return pb.REQUEST_PHASE_PREFILL if is_prompt else pb.REQUEST_PHASE_DECODE


def put_seconds(duration: Duration, seconds: float) -> None:
    """Writes seconds into a message; a negative time is 0."""
    duration.FromNanoseconds(round(1e9 * max(seconds, 0.0)))


def _cause_of(phase: pb.RequestPhase, request: Request, states: SequenceStates) -> pb.WaitCause:
    if phase == pb.REQUEST_PHASE_PREPARING:
        if request.holder:
            return pb.WAIT_CAUSE_KV_TRANSFER
        return pb.WAIT_CAUSE_GRAMMAR if request.parameters.adapter is None else pb.WAIT_CAUSE_ADAPTER
    if phase not in (pb.REQUEST_PHASE_QUEUED, pb.REQUEST_PHASE_PREEMPTED):
        return pb.WAIT_CAUSE_UNSPECIFIED
    cause = states.wait_causes.cause
    return pb.WAIT_CAUSE_TURN if cause is None else _CAUSES[cause]


def _count_blocks(request: Request, states: SequenceStates) -> tuple[int, int]:
    """Returns how many blocks a request holds, and how many of them others hold too."""
    references, tables = states.tables.pool.num_references, [each.blocks for each in request.sequences]
    if len(tables) == 1:
        return len(tables[0]), sum(references(block) > 1 for block in tables[0])
    own = Counter(chain.from_iterable(tables))
    return len(own), sum(references(block) > count for block, count in own.items())


def _put_timings(request: Request, states: SequenceStates, now: float, info: pb.RequestInfo) -> None:
    history, timings = request.history, info.timings
    waits = states.wait_causes.waited(request, now) if history.began is None else history.waits
    began = now if history.began is None else history.began
    queued = max(began - request.arrival, 0.0)
    paused = history.paused + states.wait_causes.paused_for(request, now)
    prefill = now - began - paused if history.prefill is None else history.prefill
    put_seconds(timings.preprocess, history.age)
    put_seconds(timings.queue, queued)
    put_seconds(timings.prefill, prefill)
    put_seconds(timings.decode, now - began - prefill - paused)
    put_seconds(timings.preempted, paused)
    put_seconds(timings.total, now - request.arrival + history.age)
    put_seconds(timings.waits.queue, queued - sum(waits))
    for cause, seconds in zip(Cause, waits, strict=False):  # a request that never waited has none
        put_seconds(getattr(timings.waits, cause.name.lower()), seconds)


def explain(
    scheduler: Scheduler, request_id: str, result: pb.ExplainRequestResponse, now: float
) -> Generator[int, None, None]:
    """Fills in a request, its sequences, the requests that share its blocks, and its place in the queue;
    nothing where no request has the id. Yields work done, in microseconds."""
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
    ahead = scheduler.waiting.ahead(request, scheduler.usual_output, first)
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
