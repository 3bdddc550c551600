"""Intake of requests: makes a Request of each message that arrives, or refuses it.

Cheap checks come first: in an overload most requests are refused by the length of the queue.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from math import inf

from engine_core.context import CoreContext
from engine_core.errors import Code, Refused
from engine_core.intake.overload import (
    UNBOUNDED,
    Overload,
    QueueBounds,
    check_deadline,
    predicted_wait,
    stretch,
)
from engine_core.intake.quota_exchange import QuotaExchange, QuotaFile
from engine_core.intake.quotas import Quotas, num_tokens_of
from engine_core.intake.validation import make_request
from engine_core.request import Request
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.logs import about

KEPT_S = 120.0
"""Longer than a request waits in a frontend for another core (--resume-timeout)."""
MOST = 2048
"""Ids to remember of one tenant, 1 MiB at most; the oldest are dropped first."""
MOST_IN_ALL = 32_768
"""Ids to remember of all tenants; the tenant that has aborted nothing for longest is forgotten first."""


class RecentAborts:
    """Ids by tenant, and when they were last aborted: an Abort may overtake its request.

    A request that is aborted by its id may be anywhere: here, in the tokenizer of a frontend, or in the
    journal of a frontend whose core has died. So ids are remembered for a while, and a request that arrives
    later is refused if it is older than its Abort. A new request with the same id is not: messages carry the
    age of a request. Each tenant has a memory of its own, so that a flood of aborts makes the core forget
    those of the flooding tenant only. (Frontends put the tenant before the id, and a "/" between them.)

    Times are in seconds on the core's clock.
    """

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, OrderedDict[str, float]] = OrderedDict()
        self._num_ids = 0

    def __len__(self) -> int:
        return self._num_ids

    def add(self, request_id: str, now: float) -> None:
        """Registers an Abort."""
        tenant = _tenant_of(request_id)
        at = self._tenants.setdefault(tenant, OrderedDict())
        self._tenants.move_to_end(tenant)
        self._num_ids -= len(at)
        at[request_id] = now
        at.move_to_end(request_id)
        while len(at) > MOST or next(iter(at.values())) < now - KEPT_S:
            at.popitem(last=False)
        self._num_ids += len(at)
        self._forget(now)

    def includes(self, request_id: str, since: float) -> bool:
        """Returns whether the id was aborted since then."""
        at = self._tenants.get(_tenant_of(request_id))
        return at is not None and at.get(request_id, float("-inf")) >= since

    def _forget(self, now: float) -> None:
        """Forgets tenants whose last Abort is too old, or for whom there is no room."""
        while True:
            tenant, at = next(iter(self._tenants.items()))
            if self._num_ids <= MOST_IN_ALL and next(reversed(at.values())) >= now - KEPT_S:
                return
            self._num_ids -= len(at)
            del self._tenants[tenant]


def _tenant_of(request_id: str) -> str:
    """Returns the tenant that an engine's id begins with; "": it names none."""
    tenant, slash, _ = request_id.partition("/")
    return tenant if slash else ""


log = logging.getLogger(__name__)


class Intake:
    """Admits requests, and counts those that it refuses."""

    def __init__(
        self, context: CoreContext, bounds: QueueBounds = UNBOUNDED, media_memory: float = inf
    ) -> None:
        """bounds: for the queue as a whole. media_memory: bytes of the media of requests in flight."""
        self.recent_aborts = RecentAborts()
        self._scheduler = scheduler = context.scheduler
        self._limits = context.identity.limits
        self._clock = clock = context.clock
        self.refused = context.counters.refused
        self._overload = Overload(bounds, scheduler)
        self._quotas = Quotas(scheduler)
        self._media_memory = media_memory
        self._exchange: QuotaExchange | None = None
        scheduler.states.on_request_end = lambda request: self._quotas.ended(request, clock())

    def share_quotas(self, file: QuotaFile, start: int) -> None:
        """Makes quotas hold for all cores that have such files in a folder. start: number of this start."""
        self._exchange = QuotaExchange(self._quotas, file, start)

    def exchange_quotas(self) -> None:
        """Exchanges charges with other cores, if it is time to. To be called in every step."""
        if self._exchange is not None:
            self._exchange.run(self._clock(), is_idle=not self._scheduler.requests)

    def check_aborts(self, message: AddRequest, arrival: float) -> None:
        """Raises Refused if the request of a message was aborted after it began."""
        began, names = arrival - 1e-6 * message.age_us, (message.request_id, message.group)
        if any(self.recent_aborts.includes(name, began) for name in names if name):
            self.refused["REQUEST_ABORTED"] += 1
            raise Refused("", "was aborted before it arrived", "REQUEST_ABORTED", Code.ABORTED)

    def admit(self, message: AddRequest, frontend: bytes, arrival: float) -> Request:
        """Returns the request of a message, for the scheduler. Raises Refused."""
        try:
            return self._admit(message, frontend, arrival)
        except Refused as refusal:
            self.refused[refusal.reason] += 1
            raise

    def started(self, num_requests: int) -> None:
        """Registers that so many requests were scheduled for the first time."""
        self._overload.started(num_requests, self._clock())

    def lost(self, request: Request) -> None:
        """Registers that a request has ended because its frontend is gone: its client may continue it."""
        self._quotas.lost(request, self._clock())

    def _admit(self, message: AddRequest, frontend: bytes, arrival: float) -> Request:
        if self._scheduler.requests.by_id(message.request_id):
            raise Refused(
                "request_id", "is the id of a request in flight", "REQUEST_ID_IN_USE", Code.ALREADY_EXISTS
            )
        now, factor = self._clock(), stretch(message)
        num_tokens = num_tokens_of(message)
        self._quotas.check(message, num_tokens, factor, now)
        self._overload.check_queue(message, now)
        request = make_request(message, frontend, arrival, self._limits)
        self._scheduler.states.media.check(request, self._media_memory, factor)
        if self._scheduler.refuses(request.key):
            with about(request_id=request.request_id, tenant=request.tenant, trace_id=request.trace_id):
                log.warning("the engine dies whenever this request runs: it is quarantined")
            text = "the engine died whenever it worked on this request"
            raise Refused("", text, "REQUEST_QUARANTINED", Code.INTERNAL)
        if factor == 1:  # a request that continues is not refused on a prediction
            wait = predicted_wait(request, self._scheduler)
            check_deadline(request, wait, now)
            self._overload.check_wait(message, wait, now)
        request.num_paid = self._quotas.charge(message, num_tokens, now)
        return request
