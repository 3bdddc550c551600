"""Overload control: bounds of the queue, deadlines out of reach, and when a refused request should retry.

An unbounded queue makes all requests wait behind requests whose clients have given up. So there are three
bounds: waiting requests, tokens to compute for them, and the predicted wait of a request that arrives. The
last one is fair by itself: it is measured in the order of the queue, where a flood of one tenant is not ahead
of another. For the other two: a tenant that has less of a full queue than its weight entitles it to is
admitted all the same, up to twice the bound. So a flood fills the queue for its own tenant only.

A stream that continues after a failure is admitted up to twice the bound, too, since its client has the
beginning of it; a request that a frontend resends from its journal always is: it was admitted before.

The wait until a request is first scheduled is predicted from what is ahead of it in the queue (see
WaitingQueue.ahead) and from the engine's throughput. A request that would be scheduled behind its deadline is
refused at once, and may be sent elsewhere. Three resources can be short; the scarcest decides:

    wait    = max(prompts, rows, blocks)
    prompts = tokens to compute ahead / tokens of prompts per second
    rows    = (sequences ahead + its own - free rows)    / all rows   * turnover
    blocks  = (blocks for those ahead + its own - free blocks) / all blocks * turnover

The turnover is the mean time for which a sequence holds its row and its blocks: in that time all of them are
reassigned once. A sequence ahead holds blocks for its prompt and, on average over its life, for half of its
output; and one free block is kept for each running sequence, as the scheduler does. What is not measured yet
counts as no wait: no request is refused on a guess.

A refused request is told when to retry (pagewire/retry_after.py): queue slots become free as fast as requests
have started recently.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from engine_core.errors import Code, Refused
from engine_core.queue.base import Ahead
from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.retry_after import LATEST_S, SOONEST_S, RetryAfter

QUEUE_FULL, WAIT_TOO_LONG = "QUEUE_FULL", "WAIT_TOO_LONG"
DEADLINE_UNREACHABLE = "DEADLINE_UNREACHABLE"
_STRETCH = 2.0
"""How often a bound may be filled by streams that continue and by tenants below their share."""
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How much may wait; 0: unbounded. seconds: the predicted wait."""

    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0


UNBOUNDED = QueueBounds()


def stretch(message: AddRequest) -> float:
    """Returns how often a bound may be filled for a request: 1 for a new one."""
    if message.again:
        return inf
    return _STRETCH if message.delivered or message.ended_indexes else 1.0


class Overload:
    """The bounds of one queue, and the retry times given to requests that it had no room for."""

    def __init__(self, bounds: QueueBounds, scheduler: Scheduler) -> None:
        self._bounds = bounds
        self._scheduler = scheduler
        self._retry_after = RetryAfter()
        self._is_light = True  # the queue, when the last request arrived

    def started(self, num_requests: int, now: float) -> None:
        """Registers that so many requests were scheduled for the first time."""
        self._retry_after.freed(num_requests, now)

    def check_queue(self, message: AddRequest, now: float) -> None:
        """Raises Refused if a request that arrives now finds the queue full. Very cheap: see intake.py."""
        waiting, bounds = self._scheduler.waiting, self._bounds
        own = len(message.prompt_token_ids) // _TOKEN_BYTES
        preparing = len(self._scheduler.states.preparing)
        requests = len(waiting) + preparing + 1 - len(self._scheduler.rows.free)
        # A prompt that is longer than the bound is admitted into an empty queue.
        tokens = waiting.num_tokens + own if len(waiting) else 0
        self._is_light = _is_light(requests, bounds.requests) and _is_light(tokens, bounds.tokens)
        full = _over(requests, bounds.requests), _over(tokens, bounds.tokens)
        factor = stretch(message)
        if factor == inf:
            return
        if max(full) <= 0 or self._may_stretch(message, factor, full):
            return
        mean = waiting.num_tokens / len(waiting) if len(waiting) else 1.0
        excess = max(full[0], full[1] / max(mean, 1.0))
        kind = "requests" if full[0] > 0 else "tokens"
        raise self._refused(f"the queue is full: too many {kind} wait", QUEUE_FULL, excess, now)

    def check_wait(self, message: AddRequest, wait: float, now: float) -> None:
        """Raises Refused if a request would wait for too long. wait: predicted, in seconds."""
        bound = self._bounds.seconds
        if self._is_light and _is_light(wait, bound):
            self._retry_after.forget()
        if not bound or wait <= bound or stretch(message) > 1:
            return
        excess = (wait - bound) * self._retry_after.per_second(now)
        text = f"the request would wait for {wait:.1f} s, longer than the limit of {bound:g} s"
        raise self._refused(text, WAIT_TOO_LONG, excess, now)

    def _refused(self, text: str, reason: str, excess: float, now: float) -> Refused:
        """Returns the refusal of a request. excess: requests that must start before there is room for it."""
        retry_after = self._retry_after.offer(excess, now)
        return Refused("", text, reason, Code.RESOURCE_EXHAUSTED, retry_after=retry_after)

    def _may_stretch(self, message: AddRequest, factor: float, full: tuple[float, float]) -> bool:
        """Returns whether a request is admitted to a full queue. full: excess of requests and of tokens."""
        share, bounds = self._scheduler.waiting.share(message.tenant), self._bounds
        tokens = share.tokens + len(message.prompt_token_ids) // _TOKEN_BYTES
        own = share.sequences + 1, tokens
        for excess, its, bound in zip(full, own, (bounds.requests, bounds.tokens), strict=True):
            if excess > (_STRETCH - 1) * bound:
                return False
            if factor == 1 and excess > 0 and its > share.part * bound:
                return False
        return True


def _over(count: int, bound: float) -> float:
    """Returns by how much a count exceeds a bound; 0 if it does not, or there is no bound."""
    return max(count - bound, 0.0) if bound else 0.0


def _is_light(count: float, bound: float) -> bool:
    """Returns whether at most half of a bound is used."""
    return not bound or 2 * count <= bound


def check_deadline(request: Request, wait: float, now: float) -> None:
    """Raises Refused if a request that arrives now would not be scheduled before its deadline.

    wait: the predicted wait in seconds.
    """
    if request.deadline_at is None:
        return
    left = request.deadline_at - now
    if left <= 0 or wait <= left:  # a deadline that has passed already is left to the scheduler's timeouts
        return
    raise Refused(
        "",
        f"the request would wait for {wait:.1f} s, but its deadline is in {left:.1f} s",
        DEADLINE_UNREACHABLE,
        Code.RESOURCE_EXHAUSTED,
        retry_after=min(max(wait - left, SOONEST_S), LATEST_S),
    )


def predicted_wait(request: Request, scheduler: Scheduler, ahead: Ahead | None = None) -> float:
    """Returns the seconds until a request is first scheduled. ahead: of it; None: it arrives now."""
    throughput = scheduler.throughput
    output = scheduler.usual_output
    if ahead is None:
        ahead = scheduler.waiting.ahead(request, output)
    wait = throughput.prompt_seconds(ahead.tokens) or 0.0
    turnover = throughput.turnover_seconds
    if turnover is None:
        return wait
    first, tables, pool = request.sequences[0], scheduler.tables, scheduler.pool
    own_rows = scheduler.planner.admission.rows_needed(first)
    rows = ahead.sequences + own_rows - len(scheduler.rows.free)
    own_blocks = tables.missing(first.num_tokens + 1, scheduler.prefix_cache.find(first)) + own_rows - 1
    blocks_ahead = (ahead.tokens + ahead.sequences * output / 2) / tables.block_size
    blocks = blocks_ahead + own_blocks + len(scheduler.running) - pool.num_free
    shortage = max(rows / scheduler.num_rows, blocks / pool.num_blocks, 0.0)
    return max(wait, shortage * turnover)
