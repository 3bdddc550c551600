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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from engine_core.errors import InvariantError
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
        self._idle: OrderedDict[str, Tenant] = OrderedDict()  # longest first; also in _tenants
        self._waiting_weight = 0.0  # of all that wait in some class
        self._num_waiting = 0  # tenants
        # (steps before its first one; tokens that it need not pay for: paid before, or found in the
        # cache; tokens that it has paid for, with those) of each that runs.
        self._runs: dict[Sequence, tuple[int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._tenants)

    def counters(self) -> dict[str, float]:
        """Of all that are known, by name."""
        return {tenant.name: self.counter(tenant) for tenant in list(self._tenants.values())}

    def find(self, name: str) -> Tenant:
        """The tenant of that name; one that is not known has had nothing."""
        tenant = self._tenants.get(name)
        if tenant is None:
            weights = self._weights
            weight = weights.tenants.get(name, 1.0)
            costs = weights.prompt_token / weight, weights.output_token / weight
            tenant = self._tenants[name] = Tenant(name, *costs, weight)
        return tenant

    def reweigh(self, name: str, weight: float) -> None:
        """From here on the tenant has this weight. What it was given stays what it was."""
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
        """The classes in which a tenant waits."""
        tenant = self._tenants.get(name)
        return tenant.classes if tenant is not None else ()

    def share(self, name: str) -> float:
        """The part of what there is that is due to a tenant, beside those that wait."""
        tenant = self._tenants.get(name)
        if tenant is None:
            weight = self._weights.tenants.get(name, 1.0)
            return weight / (self._waiting_weight + weight)
        others = self._waiting_weight - tenant.weight if tenant.classes else self._waiting_weight
        return tenant.weight / (max(others, 0.0) + tenant.weight)

    def counter(self, tenant: Tenant) -> float:
        """What it was given so far."""
        return tenant.charged + tenant.num_running * (self._steps - tenant.since) * tenant.output_cost

    def counter_on_arrival(self, name: str, least: float) -> float:
        """What the counter of a tenant that has nobody waiting would be after begin_to_wait()."""
        tenant = self._tenants.get(name)
        return least if tenant is None else max(self.counter(tenant), least)

    def begin_to_wait(self, tenant: Tenant, priority: int, least: float) -> None:
        """It has a sequence that waits in this class, and had none there: time without demand earns no
        credit over those that waited, whose smallest counter is `least`."""
        self._settle(tenant)
        tenant.charged = max(tenant.charged, least)
        if not tenant.classes:
            self._num_waiting += 1
            self._waiting_weight += tenant.weight
        tenant.classes.add(priority)
        self._idle.pop(tenant.name, None)

    def end_to_wait(self, tenant: Tenant, priority: int) -> None:
        """None of its sequences waits in this class any more."""
        tenant.classes.discard(priority)
        if not tenant.classes:
            self._num_waiting -= 1
            # Nobody waits most of the time: so what rounding leaves behind does not pile up.
            self._waiting_weight = self._waiting_weight - tenant.weight if self._num_waiting else 0.0
        self._forget_idle(tenant)

    def step(self) -> None:
        """A step was planned: everybody who runs gets a token."""
        self._steps += 1

    def start(self, sequence: Sequence) -> None:
        """A sequence begins to run. The tokens that it will have to compute are charged for at once."""
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
        """A run is over: in place of what was assumed of it stands what it was. Returns whose it is."""
        tenant = self.find(sequence.request.tenant)
        self._settle(tenant)
        since, free, paid = self._runs.pop(sequence)
        computed = min(max(sequence.num_computed_tokens, free), paid)
        made = max(sequence.num_tokens - paid, 0)
        assumed = self._steps - since
        beams = sequence.request.beams
        output = made if beams is None else made * beams.parameters.width
        tenant.charged += (computed - paid) * tenant.prompt_cost + (output - assumed) * tenant.output_cost
        sequence.num_charged = computed + made
        tenant.num_running -= 1
        if not tenant.num_running:
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
        waiting = [tenant.weight for tenant in self._tenants.values() if tenant.classes]
        if self._num_waiting != len(waiting) or abs(self._waiting_weight - sum(waiting)) > 1e-6:
            raise InvariantError("the weight of those that wait is not the sum of theirs")

    def _settle(self, tenant: Tenant) -> None:
        """Before its number of runs changes."""
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
