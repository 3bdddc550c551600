"""What each tenant was given: virtual token counters.

    counter = (p * prompt tokens computed + o * output tokens made) / weight of the tenant

Whoever waits and has the smallest counter is next (fair_queue.py). The idea is that of Sheng et al.,
"Fairness in Serving Large Language Models" (OSDI 2024).

A counter is exact for every run that is over. For those that go on, a token per step is assumed: so a
step costs nothing, however many run, and a counter is read in O(1). A run that made less than that (it
computed a long prompt in many steps, or was aborted) is put right when it ends.

A token is charged once. What a preempted sequence computes again it has paid for; what the prefix cache
had nobody computed; siblings share the prompt that their leader paid for. Output that came with the
request, when a stream goes on after a failure, is computed like a prompt and paid for like one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_core.block_pool import InvariantError
from engine_core.request import Sequence

MAX_IDLE = 10_000
"""Tenants to remember that have nothing in flight; the one that was last seen longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a token counts, and for whom. A tenant without a weight has 1."""

    prompt_token: float = 1.0
    output_token: float = 2.0
    tenants: Mapping[str, float] = field(default_factory=dict)


EQUAL = Weights()


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant that has something in flight, or had lately."""

    name: str
    weight: float
    num_running: int = 0  # sequences
    classes: set[int] = field(default_factory=set)  # in which it waits
    charged: float = 0.0  # its counter at step `since`
    since: int = 0


class _Run(NamedTuple):
    since: int  # steps before its first one
    start: int  # tokens below this one are not charged for: paid before, or found in the cache
    known: int  # ... and those below this one were charged for when it started


class Tenants:
    """The counters of all tenants."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._steps = 0
        self._tenants: dict[str, Tenant] = {}
        self._idle: OrderedDict[str, Tenant] = OrderedDict()  # longest first; also in _tenants
        self._runs: dict[Sequence, _Run] = {}

    def __len__(self) -> int:
        return len(self._tenants)

    def find(self, name: str) -> Tenant:
        """The tenant of that name; one that is not known has had nothing."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name, self._weights.tenants.get(name, 1.0))
        return tenant

    def counter(self, tenant: Tenant) -> float:
        """What it was given so far."""
        return tenant.charged + self._assumed(tenant, tenant.num_running * (self._steps - tenant.since))

    def counter_on_arrival(self, name: str, least: float) -> float:
        """What the counter of a tenant that has nobody waiting would be after begin_to_wait()."""
        tenant = self._tenants.get(name)
        return least if tenant is None else max(self.counter(tenant), least)

    def cost(self, prompt_tokens: float, output_tokens: float, tenant: Tenant) -> float:
        """What so many tokens add to its counter."""
        weights = self._weights
        tokens = weights.prompt_token * prompt_tokens + weights.output_token * output_tokens
        return tokens / tenant.weight

    def begin_to_wait(self, tenant: Tenant, priority: int, least: float) -> None:
        """It has a sequence that waits in this class, and had none there: time without demand earns no
        credit over those that waited, whose smallest counter is `least`."""
        self._settle(tenant)
        tenant.charged = max(tenant.charged, least)
        tenant.classes.add(priority)
        self._idle.pop(tenant.name, None)

    def end_to_wait(self, tenant: Tenant, priority: int) -> None:
        """None of its sequences waits in this class any more."""
        tenant.classes.discard(priority)
        self._forget_idle(tenant)

    def step(self) -> None:
        """A step was planned: everybody who runs gets a token."""
        self._steps += 1

    def start(self, sequence: Sequence) -> None:
        """A sequence begins to run. The tokens that it will have to compute are charged for at once."""
        tenant = self.find(sequence.request.tenant)
        self._settle(tenant)
        self._idle.pop(tenant.name, None)
        tenant.num_running += 1
        known = max(sequence.num_tokens, sequence.num_charged)
        start = min(max(sequence.num_charged, sequence.num_computed_tokens), known)
        tenant.charged += self.cost(known - start, 0, tenant)
        self._runs[sequence] = _Run(self._steps, start, known)

    def stop(self, sequence: Sequence) -> Tenant:
        """A run is over: in place of what was assumed of it stands what it was. Returns whose it is."""
        tenant = self.find(sequence.request.tenant)
        self._settle(tenant)
        run = self._runs.pop(sequence)
        computed = min(max(sequence.num_computed_tokens, run.start), run.known)
        made = max(sequence.num_tokens - run.known, 0)
        assumed = self._steps - run.since
        tenant.charged += self.cost(computed - run.known, made - assumed, tenant)
        sequence.num_charged = computed + made
        tenant.num_running -= 1
        self._forget_idle(tenant)
        return tenant

    def check_invariants(self, running: int) -> None:
        """Raises InvariantError unless so many sequences run, of tenants that are known and not idle."""
        counted = sum(tenant.num_running for tenant in self._tenants.values())
        if not running == len(self._runs) == counted:
            raise InvariantError(f"{running} sequences run, but {counted} are charged for")
        for tenant in self._tenants.values():
            if bool(tenant.num_running or tenant.classes) == (tenant.name in self._idle):
                raise InvariantError("a tenant that has something in flight counts as idle, or none does not")

    def _assumed(self, tenant: Tenant, output_tokens: int) -> float:
        return self._weights.output_token * output_tokens / tenant.weight

    def _settle(self, tenant: Tenant) -> None:
        """Before its number of runs changes."""
        tenant.charged = self.counter(tenant)
        tenant.since = self._steps

    def _forget_idle(self, tenant: Tenant) -> None:
        if tenant.num_running or tenant.classes:
            return
        self._idle[tenant.name] = tenant
        if len(self._idle) > MAX_IDLE:
            name, _ = self._idle.popitem(last=False)
            del self._tenants[name]
