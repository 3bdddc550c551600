"""Quotas of tenants: requests and sequences in flight, and tokens per minute.

Tokens are counted by a virtual clock: each token advances it by its part of a minute, and the clock of a
tenant that has used nothing for a minute stands at now. A request is admitted if the clock, with its prompt,
is not more than a minute ahead. Its prompt is charged then, its output when it ends, since its length is not
known before: so a burst may be charged late, but over time a tenant gets its quota and no more. (A prompt
that is longer than a minute's tokens is admitted when the clock stands at now.) Output that comes with a
request, as the beginning of a stream that continues, is computed like a prompt and charged like one.

No token is charged twice for a death that is not the tenant's: what a journal sends again was charged before,
and what requests cost whose frontend is lost becomes a credit, from which their continuations are paid. What
is left of it after two minutes is void.

The terms of a tenant's latest request apply. A tenant without terms has no quota. What other engine cores
compute for a tenant counts too: quota_exchange.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from engine_core.errors import Code, Refused
from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.retry_after import UNKNOWN_S

TENANT_QUOTA = "TENANT_QUOTA"
REQUESTS, SEQUENCES, TOKENS = "requests", "sequences", "tokens_per_minute"
"""Names of the quotas."""
_TOKEN_BYTES = 4
_MINUTE = 60.0
_SOONEST_S, _LATEST_S = 0.1, 3600.0
_CREDIT_S = 120.0
_MANY = 1024
"""Clocks to keep before those that stand at now, and so carry no information, are removed."""


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What a tenant has used of its quotas at one core."""

    per_minute: int  # its quota of tokens; 0: none
    ahead_s: float  # by which its clock was ahead when this was written
    charged: int  # tokens, since the start of the core
    num_requests: int  # in flight
    num_sequences: int


@dataclass(slots=True)
class _Clock:
    """The clock of a tenant with a quota of tokens."""

    per_minute: int
    at: float  # the time by which its tokens so far are paid for
    credit: int = 0  # tokens that it has paid for and has to pay for again
    credit_until: float = 0.0

    def ahead(self, now: float) -> float:
        """Returns by how many seconds the clock is ahead of now."""
        return max(self.at - now, 0.0)

    def credit_at(self, now: float) -> int:
        """Returns the tokens that are not charged."""
        return self.credit if now < self.credit_until else 0

    def charge(self, tokens: int, now: float) -> None:
        """Charges for tokens, those first for which there is credit."""
        self.advance(tokens - self.spend(tokens, now), now)

    def spend(self, tokens: int, now: float) -> int:
        """Takes as many tokens from the credit as there are; returns their number."""
        spent = min(self.credit_at(now), tokens)
        self.credit = self.credit_at(now) - spent
        return spent

    def advance(self, tokens: int, now: float) -> None:
        """Charges for tokens that no credit is for."""
        self.at = max(self.at, now) + _MINUTE * tokens / self.per_minute

    def refund(self, tokens: int, now: float) -> None:
        """Adds to the credit."""
        self.credit = self.credit_at(now) + tokens
        self.credit_until = now + _CREDIT_S


class Quotas:
    """The quotas of all tenants at one engine core."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._clocks: dict[str, _Clock] = {}
        self._charged: Counter[str] = Counter()  # tokens, of tenants that have clocks
        self._counted: set[str] = set()  # tenants whose latest request had a quota
        self.elsewhere: Mapping[str, tuple[int, int]] = {}
        """By tenant: requests and sequences in flight at other cores."""

    def check(self, message: AddRequest, num_tokens: int, stretch: float, now: float) -> None:
        """Raises Refused if a request with so many tokens to compute exceeds a quota of its tenant.

        stretch: how often a quota may be filled; see overload.py.
        """
        tenant, terms = message.tenant, message.tenant_terms
        requests, sequences = self.elsewhere.get(tenant, (0, 0))
        in_flight = self._scheduler.requests.num_of_tenant(tenant) + requests
        if terms.max_requests and in_flight + 1 > terms.max_requests * stretch:
            text = f"the tenant may have at most {terms.max_requests} requests in flight"
            raise _refused(text, REQUESTS, self._until_one_ends(in_flight))
        sequences += self._scheduler.requests.num_sequences_of_tenant(tenant) + _num_sequences(message)
        if terms.max_sequences and sequences > terms.max_sequences * stretch:
            text = f"the tenant may have at most {terms.max_sequences} sequences in flight"
            raise _refused(text, SEQUENCES, self._until_one_ends(in_flight))
        clock = self._clocks.get(tenant)
        most = terms.max_tokens_per_minute
        if most and clock is not None:
            needed = _MINUTE * min(max(num_tokens - clock.credit_at(now), 0), most) / most
            wait = clock.ahead(now) + needed - _MINUTE * stretch
            if wait > 0:
                text = f"the tenant may use at most {most} tokens per minute"
                raise _refused(text, TOKENS, wait)

    def charge(self, message: AddRequest, num_tokens: int, now: float) -> int:
        """Charges for the tokens that came with a request that is admitted; returns how many it now has paid
        for. Those of a request that comes again were charged before."""
        tenant, terms = message.tenant, message.tenant_terms
        most = terms.max_tokens_per_minute
        if most or terms.max_requests or terms.max_sequences:
            self._counted.add(tenant)
        else:
            self._counted.discard(tenant)
        if not most:
            self._clocks.pop(tenant, None)
            return 0
        clock = self._clock(tenant, most, now)
        if message.again:
            clock.spend(num_tokens, now)
        else:
            clock.charge(num_tokens, now)
            self._charged[tenant] += num_tokens
        return num_tokens

    def ended(self, request: Request, now: float) -> None:
        """Charges for the output of a request that has ended, as far as it was generated here."""
        clock = self._clocks.get(request.tenant)
        if clock is not None:
            clock.charge(max(request.num_made, 0), now)
            self._charged[request.tenant] += max(request.num_made, 0)

    def lost(self, request: Request, now: float) -> None:
        """Registers that a request has ended with its frontend: what it cost becomes a credit."""
        clock = self._clocks.get(request.tenant)
        if clock is not None:
            clock.refund(request.num_paid + max(request.num_made, 0), now)

    # Other cores, and past lives of this one.

    def charge_elsewhere(self, tenant: str, per_minute: int, tokens: int, now: float) -> None:
        """Charges for tokens that another core has computed."""
        self._clock(tenant, per_minute, now).advance(tokens, now)

    def restore(self, tenant: str, per_minute: int, ahead_s: float, now: float) -> None:
        """Sets the clock of a tenant at least so many seconds ahead of now."""
        if per_minute and ahead_s > 0:
            clock = self._clock(tenant, per_minute, now)
            clock.at = max(clock.at, now + ahead_s)

    def uses(self, now: float) -> dict[str, TenantUse]:
        """Returns what tenants with quotas use here, those that use nothing left out."""
        requests = self._scheduler.requests
        self._counted = {
            name for name in self._counted if requests.num_of_tenant(name) or name in self._clocks
        }
        self._charged = Counter(
            {name: charged for name, charged in self._charged.items() if name in self._clocks}
        )
        uses = {}
        for name in self._counted | self._clocks.keys():
            clock, num_requests = self._clocks.get(name), requests.num_of_tenant(name)
            ahead = clock.ahead(now) if clock is not None else 0.0
            if ahead or num_requests:
                per_minute, sequences = (
                    clock.per_minute if clock else 0,
                    requests.num_sequences_of_tenant(name),
                )
                uses[name] = TenantUse(per_minute, ahead, self._charged[name], num_requests, sequences)
        return uses

    def _clock(self, tenant: str, per_minute: int, now: float) -> _Clock:
        """Returns the clock of a tenant with a quota of tokens."""
        clock = self._clocks.get(tenant)
        if clock is None:
            if len(self._clocks) >= _MANY and len(self._clocks).bit_count() == 1:
                self._clocks = {name: each for name, each in self._clocks.items() if each.at > now}
            clock = self._clocks[tenant] = _Clock(per_minute, now)
        clock.per_minute = per_minute
        return clock

    def _until_one_ends(self, in_flight: int) -> float:
        """Returns the mean time in seconds until one of so many requests ends."""
        turnover = self._scheduler.throughput.turnover_seconds
        return UNKNOWN_S if turnover is None else turnover / max(in_flight, 1)


def num_tokens_of(message: AddRequest) -> int:
    """Returns the tokens that come with a request: its prompt, and output that was delivered before."""
    delivered = sum(len(part.token_ids) for part in message.delivered)
    return (len(message.prompt_token_ids) + delivered) // _TOKEN_BYTES


def _num_sequences(message: AddRequest) -> int:
    """Returns how many rows a request may take."""
    sampling = message.sampling
    return max(sampling.beam_search.width, sampling.n, 1)


def _refused(text: str, quota: str, seconds: float) -> Refused:
    retry_after = min(max(seconds, _SOONEST_S), _LATEST_S)
    return Refused("", text, TENANT_QUOTA, Code.RESOURCE_EXHAUSTED, retry_after=retry_after, quota=quota)
