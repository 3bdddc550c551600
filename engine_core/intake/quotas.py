"""What a tenant may have, as its terms say: requests in flight, and tokens per minute.

Tokens are counted by a virtual clock: each costs its part of a minute, and the clock of a tenant that has
used nothing for a minute stands at now. A request is taken when the clock, with its prompt, is not more
than a minute ahead. Its prompt is charged then, its output when it ends, since nobody knows before how long
it will be: so a burst may be charged late, but over time a tenant gets what it may have, and no more.
(A prompt that is longer than a minute's tokens is taken when the clock stands at now.)

The last terms that a tenant's requests came with count. A tenant without terms has no quota.
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
"""The quotas."""
_MINUTE = 60.0
_SOONEST_S, _LATEST_S = 0.1, 3600.0
_MANY = 1024
"""Clocks to keep before those that stand at now are looked for: they say nothing."""


@dataclass(slots=True)
class _Clock:
    """Of a tenant with a quota of tokens."""

    per_minute: int
    at: float  # what it was given so far is paid for by then

    def ahead(self, now: float) -> float:
        """Seconds."""
        return max(self.at - now, 0.0)

    def charge(self, tokens: int, now: float) -> None:
        self.at = max(self.at, now) + _MINUTE * tokens / self.per_minute


class Quotas:
    """The quotas of all tenants at one core."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._clocks: dict[str, _Clock] = {}

    def check(self, message: AddRequest, num_tokens: int, stretch: float, now: float) -> None:
        """Raises Refused when a tenant may not have a request with a prompt of so many tokens now.

        stretch: see overload.py; so often a quota may be filled.
        """
        tenant, terms = message.tenant, message.tenant_terms
        in_flight = self._scheduler.requests.num_of_tenant(tenant)
        if terms.max_requests and in_flight + 1 > terms.max_requests * stretch:
            text = f"{terms.max_requests} requests in flight are the most that the tenant may have"
            raise _refused(text, REQUESTS, self._until_one_ends(in_flight))
        clock = self._clocks.get(tenant)
        most = terms.max_tokens_per_minute
        if most and clock is not None:
            needed = _MINUTE * min(num_tokens, most) / most
            wait = clock.ahead(now) + needed - _MINUTE * stretch
            if wait > 0:
                text = f"{most} tokens per minute are the most that the tenant may have"
                raise _refused(text, TOKENS, wait)

    def charge(self, message: AddRequest, num_tokens: int, now: float) -> None:
        """A request is taken; so many tokens count at once."""
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
        """All sequences of a request have ended: their output is charged, as far as it was made here."""
        clock = self._clocks.get(request.tenant)
        if clock is not None:
            clock.charge(max(request.num_made, 0), now)

    def _until_one_ends(self, in_flight: int) -> float:
        """Seconds, in the mean, until one of so many requests has ended."""
        turnover = self._scheduler.throughput.turnover_seconds
        return UNKNOWN_S if turnover is None else turnover / max(in_flight, 1)


def _refused(text: str, quota: str, seconds: float) -> Refused:
    retry_after = min(max(seconds, _SOONEST_S), _LATEST_S)
    return Refused("", text, TENANT_QUOTA, Code.RESOURCE_EXHAUSTED, retry_after=retry_after, quota=quota)
