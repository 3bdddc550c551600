"""Overload control: bounds of the queue, and when a refused request should be retried.

An unbounded queue makes all requests wait behind requests whose clients have given up. So there are three
bounds: waiting requests, tokens to compute for them, and the predicted wait of a request that arrives
(deadlines.py). The last one is fair by itself: it is measured in the order of the queue, where a flood of one
tenant is not ahead of another. For the other two: a tenant that has less of a full queue than its weight
entitles it to is admitted all the same, up to twice the bound. So a flood fills the queue for its own tenant
only.

A stream that continues after a failure is admitted up to twice the bound, too, since its client has the
beginning of it; a request that a frontend resends from its journal always is: it was admitted before.

A refused request is told when to retry (pagewire/retry_after.py): queue slots become free as fast as requests
have started recently.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from engine_core.errors import Code, Refused
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.retry_after import RetryAfter

if TYPE_CHECKING:
    from engine_core.scheduler.scheduler import Scheduler

QUEUE_FULL, WAIT_TOO_LONG = "QUEUE_FULL", "WAIT_TOO_LONG"
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
