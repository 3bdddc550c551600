"""What each tenant was served: virtual token counters.

    counter = (p * prompt tokens computed + o * output tokens generated) / weight of the tenant

The waiting tenant with the smallest counter is next (fair.py). The idea is that of Sheng et al., "Fairness in
Serving Large Language Models" (OSDI 2024).

A counter is exact for every run that is over. For running sequences a token per step is assumed: so a step
costs nothing, however many run, and a counter is read in O(1). A run that generated less (it computed a long
prompt in many steps, or was aborted) is corrected when it ends.

A token is charged once. A preempted sequence is not charged for what it computes again, nor any sequence for
what the prefix cache had; siblings share the prompt that their leader was charged for. Output that came with
the request, when a stream continues after a failure, is computed and charged like a prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from engine_core.errors import InvariantError
from engine_core.request import Sequence

MAX_IDLE = 10_000
"""Tenants without requests in flight that are remembered; the least recently seen is forgotten first."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of tokens and of tenants. A tenant that is not named has weight 1."""

    prompt_token: float = 1.0
    output_token: float = 2.0
    tenants: Mapping[str, float] = field(default_factory=dict)


EQUAL = Weights()


@dataclass(slots=True, eq=False)
class Tenant:
    """A tenant that has requests in flight, or had recently."""

    name: str
    prompt_cost: float  # what a computed token of a prompt adds to its counter
    output_cost: float  # and what a token of output adds
    weight: float
    num_running: int = 0  # sequences
    classes: set[int] = field(default_factory=set)  # in which it waits
    charged: float = 0.0  # its counter at step `since`
    since: int = 0


class Tenants:
    """The counters of all tenants."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._steps = 0
        self._tenants: dict[str, Tenant] = {}
        self._idle: OrderedDict[str, Tenant] = OrderedDict()  # least recently seen first; also in _tenants
        self._waiting_weight = 0.0  # of all tenants that wait in some class
        self._num_waiting = 0  # tenants
        self._runs: dict[Sequence, tuple[int, int, int]] = {}
        """By running sequence: steps before its first one; tokens that are not charged (charged before, or
        found in the cache); these and the tokens that are charged."""

    def __len__(self) -> int:
        return len(self._tenants)

    def counters(self) -> dict[str, float]:
        """Returns the counters of all known tenants by name."""
        return {tenant.name: self.counter(tenant) for tenant in list(self._tenants.values())}

    def get(self, name: str) -> Tenant | None:
        """Returns the tenant of that name, if it is known."""
        return self._tenants.get(name)

    def find(self, name: str) -> Tenant:
        """Returns the tenant of that name; a new one has a counter of 0."""
        tenant = self._tenants.get(name)
        if tenant is None:
            weights = self._weights
            weight = weights.tenants.get(name, 1.0)
            costs = weights.prompt_token / weight, weights.output_token / weight
            tenant = self._tenants[name] = Tenant(name, *costs, weight)
        return tenant

    def reweigh(self, name: str, weight: float) -> None:
        """Changes the weight of a tenant from here on. Its counter does not change."""
        tenant = self.find(name)
        if tenant.weight == weight:
            return
        self._settle(tenant)
        if tenant.classes:
            self._waiting_weight += weight - tenant.weight
        tenant.weight = weight
        tenant.prompt_cost = self._weights.prompt_token / weight
        tenant.output_cost = self._weights.output_token / weight
        self._forget_idle(tenant)

    def classes_of(self, name: str) -> Collection[int]:
        """Returns the classes in which a tenant waits."""
        tenant = self._tenants.get(name)
        return tenant.classes if tenant is not None else ()

    def share(self, name: str) -> float:
        """Returns the fraction that a tenant is entitled to among the waiting tenants."""
        tenant = self._tenants.get(name)
        if tenant is None:
            weight = self._weights.tenants.get(name, 1.0)
            return weight / (self._waiting_weight + weight)
        others = self._waiting_weight - tenant.weight if tenant.classes else self._waiting_weight
        return tenant.weight / (max(others, 0.0) + tenant.weight)

    def share_beside(self, name: str, running: Collection[str]) -> float:
        """Returns the fraction that a tenant is entitled to among those that wait and those named."""
        others = [tenant for each in running if each != name and not (tenant := self.find(each)).classes]
        own = self.find(name)
        waiting = max(self._waiting_weight - own.weight, 0.0) if own.classes else self._waiting_weight
        return own.weight / (own.weight + waiting + sum(tenant.weight for tenant in others))

    def counter(self, tenant: Tenant) -> float:
        """Returns what a tenant was served so far."""
        return tenant.charged + tenant.num_running * (self._steps - tenant.since) * tenant.output_cost

    def counter_on_arrival(self, name: str, least: float) -> float:
        """Returns what the counter of a tenant that does not wait would be after begin_to_wait()."""
        tenant = self._tenants.get(name)
        return least if tenant is None else max(self.counter(tenant), least)

    def begin_to_wait(self, tenant: Tenant, priority: int, least: float) -> None:
        """Registers that a tenant has its first waiting sequence in a class.

        least: the smallest counter there; a tenant without demand earns no credit over those that waited.
        """
        self._settle(tenant)
        tenant.charged = max(tenant.charged, least)
        if not tenant.classes:
            self._num_waiting += 1
            self._waiting_weight += tenant.weight
        tenant.classes.add(priority)
        self._idle.pop(tenant.name, None)

    def end_to_wait(self, tenant: Tenant, priority: int) -> None:
        """Registers that no sequence of a tenant waits in a class any more."""
        tenant.classes.discard(priority)
        if not tenant.classes:
            self._num_waiting -= 1
            # The queue is empty most of the time: that resets rounding errors.
            self._waiting_weight = self._waiting_weight - tenant.weight if self._num_waiting else 0.0
        self._forget_idle(tenant)

    def step(self) -> None:
        """Registers a planned step, in which each running sequence gets a token."""
        self._steps += 1

    def start(self, sequence: Sequence) -> None:
        """Registers that a sequence begins to run, and charges for the tokens that it has to compute."""
        tenant = self.find(sequence.request.tenant)
        if not tenant.num_running:
            self._idle.pop(tenant.name, None)
        self._settle(tenant)
        tenant.num_running += 1
        paid = max(sequence.num_tokens, sequence.num_charged)
        free = max(sequence.num_computed_tokens, sequence.num_charged)
        tenant.charged += (paid - free) * tenant.prompt_cost
        self._runs[sequence] = self._steps, free, paid

    def stop(self, sequence: Sequence) -> Tenant:
        """Registers that a run is over: what it computed replaces what was assumed. Returns its tenant."""
        tenant = self.find(sequence.request.tenant)
        self._settle(tenant)
        since, free, paid = self._runs.pop(sequence)
        computed = min(max(sequence.num_computed_tokens, free), paid)
        made = max(sequence.num_tokens - paid, 0)
        assumed = self._steps - since
        output = made * sequence.request.width
        tenant.charged += (computed - paid) * tenant.prompt_cost + (output - assumed) * tenant.output_cost
        sequence.num_charged = computed + made
        tenant.num_running -= 1
        if not tenant.num_running:
            self._forget_idle(tenant)
        return tenant

    def check_invariants(self, running: int) -> None:
        """Raises InvariantError unless `running` sequences run, of tenants that are known and not idle."""
        counted = sum(tenant.num_running for tenant in self._tenants.values())
        if not running == len(self._runs) == counted:
            raise InvariantError(f"{running} sequences run, but {counted} are charged for")
        for tenant in self._tenants.values():
            if bool(tenant.num_running or tenant.classes) == (tenant.name in self._idle):
                raise InvariantError("a tenant that has something in flight counts as idle, or none does not")
        waiting = [tenant.weight for tenant in self._tenants.values() if tenant.classes]
        if self._num_waiting != len(waiting) or abs(self._waiting_weight - sum(waiting)) > 1e-6:
            raise InvariantError("the weight of waiting tenants is not the sum of their weights")

    def _settle(self, tenant: Tenant) -> None:
        """Brings the counter up to date. To be called before the tenant's number of runs changes."""
        if tenant.since != self._steps:
            tenant.charged = self.counter(tenant)
            tenant.since = self._steps

    def _forget_idle(self, tenant: Tenant) -> None:
        if tenant.num_running or tenant.classes:
            return
        self._idle[tenant.name] = tenant
        if len(self._idle) > MAX_IDLE:
            name, _ = self._idle.popitem(last=False)
            del self._tenants[name]
