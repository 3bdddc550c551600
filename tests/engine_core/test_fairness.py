"""The order of admission: shares of tenants, classes, and the cost of fairness."""

import random
from collections import Counter

import pytest

from engine_core.queue.base import FAIR, FIRST_COME
from engine_core.queue.fair import FairQueue
from engine_core.queue.token_counters import Weights
from tests.engine_core.world import World

PROMPT, OUTPUT = 6, 9
PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2  # those of Weights()


def flood(world: World, tenants: dict[str, int], **options: object) -> None:
    """So many requests of each tenant, one tenant after the other."""
    handle = len(world.messages)
    for tenant, count in tenants.items():
        for _ in range(count):
            handle += 1
            world.add(handle, PROMPT, tenant=tenant, max_tokens=OUTPUT, ignore_eos=True, **options)  # type: ignore[arg-type]


def service(world: World) -> Counter[str]:
    """Virtual tokens that each tenant was served: all prompts that ran, all tokens generated."""
    had: Counter[str] = Counter()
    for (handle, _), tokens in world.ledger.tokens.items():
        message = world.messages[handle]
        prompt = len(message.prompt_token_ids) // 4
        had[message.tenant] += PROMPT_WEIGHT * prompt + OUTPUT_WEIGHT * len(tokens)
    return had


def waiting_tenants(world: World) -> set[str]:
    return {sequence.request.tenant for sequence in world.scheduler.waiting}


@pytest.mark.parametrize("weight", [1, 3, 0.5])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_flood_leaves_the_others_their_shares(weight: float, ahead: bool) -> None:
    """A tenant has 300 waiting requests when a small one arrives: from then on, while both wait, they are
    served by their weights, within 10 %. (Rows are the limit, not the pool.)"""
    world = World(rows=8, blocks=256, budget=64, weights=Weights(tenants={"small": weight}))
    flood(world, {"flood": 300})
    world.step(40)
    flood(world, {"small": round(80 * max(weight, 1))})
    before = service(world)
    while waiting_tenants(world) == {"flood", "small"}:
        world.step()
    had = service(world)
    ratio = (had["small"] - before["small"]) / (had["flood"] - before["flood"])
    assert ratio == pytest.approx(weight, rel=0.1)
    world.ahead = ahead
    world.finish()


@pytest.mark.parametrize("ahead", [False, True])
def test_fairness_costs_no_throughput(ahead: bool) -> None:
    """Steps to serve all requests, of all lengths, in a pool that is short at times."""
    steps = {}
    for policy in (FAIR, FIRST_COME):
        world = World(rows=8, blocks=48, budget=48, policy=policy, ahead=ahead)
        draw = random.Random(5)
        for handle in range(1, 151):
            tenant = draw.choice("aaaaaaabbc")
            length, most = draw.randint(1, 30), draw.randint(1, 30)
            world.add(handle, length, tenant=tenant, max_tokens=most, ignore_eos=True)
        world.finish()
        steps[policy] = world.scheduler.step
    assert steps[FIRST_COME] >= 0.95 * steps[FAIR]


@pytest.mark.parametrize("ahead", [False, True])
def test_one_tenant_in_one_class_is_served_first_come_first_served(ahead: bool) -> None:
    """The same plans, step by step, with preemptions, siblings and aborts among them."""
    plans = []
    for policy in (FAIR, FIRST_COME):
        world = World(rows=6, blocks=20, budget=24, policy=policy, ahead=ahead)
        draw = random.Random(7)
        requests = [
            world.add(handle, draw.randint(1, 20), n=draw.choice([1, 1, 3]), max_tokens=draw.randint(1, 20))
            for handle in range(1, 41)
        ]
        world.step(10)
        for request in draw.sample(requests, 5):
            world.scheduler.abort(request)
            del world.messages[request.handle]
        world.finish()
        assert world.scheduler.num_preemptions > 3
        plans.append(world.worker.plans)
    assert plans[0] == plans[1]


def test_classes_are_strict() -> None:
    """No request is admitted while one of a better class waits, whatever its tenant was served."""
    world = World(rows=2)
    flood(world, {"new": 5}, priority=7)
    flood(world, {"old": 20}, priority=-3)
    flood(world, {"new": 5}, priority=0)
    world.finish()
    assert [world.messages[handle].priority for handle in world.ledger.started] == [-3] * 20 + [0] * 5 + [
        7
    ] * 5


def test_no_request_starves_within_a_class() -> None:
    """A request that needs every row, of a tenant that was served more than the one that floods: its turn
    comes, and requests behind it wait until it fits."""
    world = World(rows=8, blocks=256, budget=64)
    flood(world, {"big": 30})
    world.step(20)
    wide = 1000
    world.add(wide, PROMPT, n=8, tenant="big", max_tokens=OUTPUT, ignore_eos=True)
    for step in range(400):
        handle = 2000 + step
        world.add(handle, PROMPT, tenant="flood", max_tokens=OUTPUT, ignore_eos=True)
        world.step()
        if wide in world.ledger.started:
            break
    assert wide in world.ledger.started
    world.finish()


def test_time_without_demand_earns_no_credit() -> None:
    """A tenant that returns after another was served gets an even share, not a monopoly."""
    world = World(rows=4, blocks=256)
    flood(world, {"away": 1})
    flood(world, {"busy": 100})
    while "busy" in waiting_tenants(world) and len(world.ledger.ends) < 60:
        world.step()
    flood(world, {"away": 40})
    before = len(world.ledger.started)
    while len(world.ledger.started) < before + 20:
        world.step()
    started = Counter(world.messages[handle].tenant for handle in world.ledger.started[before : before + 20])
    assert abs(started["away"] - started["busy"]) <= 4
    world.finish()


@pytest.mark.parametrize("policy", [FAIR, FIRST_COME])
def test_a_preempted_sequence_comes_before_its_equals(policy: str) -> None:
    world = World(rows=3, blocks=6, block_size=4, policy=policy)
    for handle in (1, 2, 3):
        world.add(handle, 7, max_tokens=12, ignore_eos=True)
    world.step(2)
    while not world.scheduler.num_preemptions:
        world.step()
    world.add(4, 1, max_tokens=1)
    order = []
    while (sequence := world.scheduler.waiting.head()) is not None:
        order.append(sequence.request.handle)
        world.scheduler.abort(sequence.request)
    assert order == sorted(order) and order[-1] == 4 and len(order) > 1


def test_the_example_of_the_documentation() -> None:
    """docs/scheduling.md, Order: one row; requests of 10 + 5 tokens, 20 virtual ones; b has weight 2."""
    world = World(rows=1, weights=Weights(tenants={"b": 2}))
    waiting = world.scheduler.waiting
    assert isinstance(waiting, FairQueue)
    names: dict[int, str] = {}

    def arrive(*requests: str, priority: int = 0) -> None:
        for name in requests:
            names[len(names) + 1] = name
            world.add(
                len(names), 10, tenant=name[0], max_tokens=5, ignore_eos=True, bypass=True, priority=priority
            )

    def counters() -> list[float]:
        return [waiting.tenants.counter_on_arrival(tenant, 0.0) for tenant in "abc"]

    arrive("a1", "a2", "a3", "b1", "b2", "b3")
    seen = []
    for run in range(8):
        if run == 3:
            arrive("c1")
        if run == 5:
            arrive("c2", priority=-1)
        head = waiting.head()
        assert head is not None
        seen.append((names[head.request.handle], *counters()))
        world.step(5)
    assert seen == [
        ("a1", 0, 0, 0),
        ("b1", 20, 0, 0),
        ("b2", 20, 10, 0),
        ("a2", 20, 20, 20),
        ("b3", 40, 20, 20),
        ("c2", 40, 30, 20),
        ("a3", 40, 30, 40),
        ("c1", 60, 30, 40),
    ]
