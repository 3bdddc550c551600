"""The door of the engine core: each request that arrives is born here, or refused.

What is cheap is asked first: in an overload most requests get no further than the length of the queue.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from engine_core.errors import Code, Refused
from engine_core.intake.deadlines import check_deadline, predicted_wait
from engine_core.intake.overload import UNBOUNDED, Overload, QueueBounds, stretch
from engine_core.intake.quotas import Quotas
from engine_core.intake.recent_aborts import AbortedIds
from engine_core.intake.validation import Limits, make_request
from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import AddRequest

log = logging.getLogger(__name__)

_TOKEN_BYTES = 4


class Door:
    """Who may come in, and a count of who may not."""

    def __init__(
        self,
        scheduler: Scheduler,
        limits: Limits,
        clock: Callable[[], float],
        bounds: QueueBounds = UNBOUNDED,
    ) -> None:
        """limits: of single requests. bounds: of all that wait together."""
        self.refused: Counter[str] = Counter()
        """Requests since the start, by reason."""
        self.aborted = AbortedIds()
        self._scheduler = scheduler
        self._limits = limits
        self._clock = clock
        self._overload = Overload(bounds, scheduler)
        self._quotas = Quotas(scheduler)
        scheduler.states.on_request_end = lambda request: self._quotas.ended(request, clock())

    def admit(self, message: AddRequest, frontend: bytes, arrival: float) -> Request:
        """The request of a message, which the caller hands to the scheduler. Raises Refused."""
        try:
            return self._admit(message, frontend, arrival)
        except Refused as refusal:
            self.refused[refusal.reason] += 1
            raise

    def began(self, num_requests: int) -> None:
        """So many requests were scheduled for the first time."""
        self._overload.began(num_requests, self._clock())

    def _admit(self, message: AddRequest, frontend: bytes, arrival: float) -> Request:
        began = arrival - 1e-6 * message.age_us
        if any(self.aborted.hit(name, began) for name in (message.request_id, message.group) if name):
            raise Refused("", "was aborted on its way", "REQUEST_ABORTED", Code.ABORTED)
        if self._scheduler.requests.by_id(message.request_id):
            raise Refused(
                "request_id", "is that of a request in flight", "REQUEST_ID_IN_USE", Code.ALREADY_EXISTS
            )
        now, factor = self._clock(), stretch(message)
        num_tokens = len(message.prompt_token_ids) // _TOKEN_BYTES
        self._quotas.check(message, num_tokens, factor, now)
        self._overload.check_queue(message, now)
        request = make_request(message, frontend, arrival, self._limits)
        if self._scheduler.refuses(request.key):
            log.warning("the engine dies whenever request %s runs: it is ended", message.request_id)
            text = "the engine died whenever it worked on this request"
            raise Refused("", text, "REQUEST_QUARANTINED", Code.INTERNAL)
        if factor == 1:  # others have a beginning: they are in nobody's way, and not refused on a guess
            wait = predicted_wait(request, self._scheduler)
            check_deadline(request, wait, now)
            self._overload.check_wait(message, wait, now)
        self._quotas.charge(message, 0 if message.again else num_tokens, now)
        return request
