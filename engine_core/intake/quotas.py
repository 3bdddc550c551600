"""Quotas of tenants: requests in flight, and tokens per minute.

Tokens are counted by a virtual clock: each token advances it by its part of a minute, and the clock of a
tenant that has used nothing for a minute stands at now. A request is admitted if the clock, with its prompt,
is not more than a minute ahead. Its prompt is charged then, its output when it ends, since its length is not
known before: so a burst may be charged late, but over time a tenant gets its quota and no more. (A prompt
that is longer than a minute's tokens is admitted when the clock stands at now.)

The terms of a tenant's latest request apply. A tenant without terms has no quota.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine_core.errors import Code, Refused
from engine_core.request import Request
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.retry_after import UNKNOWN_S

if TYPE_CHECKING:
    from engine_core.scheduler.scheduler import Scheduler

TENANT_QUOTA = "TENANT_QUOTA"
REQUESTS, TOKENS = "requests", "tokens_per_minute"
"""Names of the quotas."""
_MINUTE = 60.0
_SOONEST_S, _LATEST_S = 0.1, 3600.0
_MANY = 1024
"""Clocks to keep before those that stand at now, and so carry no information, are removed."""


@dataclass(slots=True)
class _Clock:
    """The clock of a tenant with a quota of tokens."""

    per_minute: int
    at: float  # the time by which its tokens so far are paid for

    def ahead(self, now: float) -> float:
        """Returns by how many seconds the clock is ahead of now."""
        return max(self.at - now, 0.0)

    def charge(self, tokens: int, now: float) -> None:
        self.at = max(self.at, now) + _MINUTE * tokens / self.per_minute


class Quotas:
    """The quotas of all tenants at one engine core."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._clocks: dict[str, _Clock] = {}

    def check(self, message: AddRequest, num_tokens: int, stretch: float, now: float) -> None:
        """Raises Refused if a request with a prompt of so many tokens exceeds a quota of its tenant.

        stretch: how often a quota may be filled; see overload.py.
        """
        tenant, terms = message.tenant, message.tenant_terms
        in_flight = self._scheduler.requests.num_of_tenant(tenant)
        if terms.max_requests and in_flight + 1 > terms.max_requests * stretch:
            text = f"the tenant may have at most {terms.max_requests} requests in flight"
            raise _refused(text, REQUESTS, self._until_one_ends(in_flight))
        clock = self._clocks.get(tenant)
        most = terms.max_tokens_per_minute
        if most and clock is not None:
            needed = _MINUTE * min(num_tokens, most) / most
            wait = clock.ahead(now) + needed - _MINUTE * stretch
            if wait > 0:
                text = f"the tenant may use at most {most} tokens per minute"
                raise _refused(text, TOKENS, wait)

    def charge(self, message: AddRequest, num_tokens: int, now: float) -> None:
        """Charges for the prompt of a request that is admitted."""
        tenant, most = message.tenant, message.tenant_terms.max_tokens_per_minute
        if not most:
            self._clocks.pop(tenant, None)
            return
        clock = self._clocks.get(tenant)
        if clock is None:
            if len(self._clocks) >= _MANY and len(self._clocks).bit_count() == 1:
                self._clocks = {name: each for name, each in self._clocks.items() if each.at > now}
            clock = self._clocks[tenant] = _Clock(most, now)
        clock.per_minute = most
        clock.charge(num_tokens, now)

    def ended(self, request: Request, now: float) -> None:
        """Charges for the output of a request that has ended, as far as it was generated here."""
        clock = self._clocks.get(request.tenant)
        if clock is not None:
            clock.charge(max(request.num_made, 0), now)

    def _until_one_ends(self, in_flight: int) -> float:
        """Returns the mean time in seconds until one of so many requests ends."""
        turnover = self._scheduler.throughput.turnover_seconds
        return UNKNOWN_S if turnover is None else turnover / max(in_flight, 1)


def _refused(text: str, quota: str, seconds: float) -> Refused:
    retry_after = min(max(seconds, _SOONEST_S), _LATEST_S)
    return Refused("", text, TENANT_QUOTA, Code.RESOURCE_EXHAUSTED, retry_after=retry_after, quota=quota)
