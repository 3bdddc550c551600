"""Micro-batches: which rows are in which plan, and how many plans are in flight."""

from engine_core.step.plan import Plan
from tests.engine_core.fakes import add_request, num_results_due
from tests.engine_core.house import House
from tests.engine_core.world import World


def rows_of(plans: list[Plan]) -> list[list[int]]:
    return [sorted(plan.rows) for plan in plans]


def step(world: World, steps: int) -> list[Plan]:
    """Plans ahead so many times. Returns the plans, each without a row that a plan before it samples whose
    result has not come, unless it was made together with it."""
    plans = []
    for _ in range(steps):
        plan = world.scheduler.schedule(0.0)
        if plan.rows:
            world.worker.submit(plan)
            plans.append(plan)
        for _ in range(num_results_due(world.scheduler, plan, ahead=True)):
            world.scheduler.update(world.worker.collect())
        world.scheduler.check_invariants()
    return plans


def test_rows_that_decode_take_turns() -> None:
    """All prompts are in the first plan, as without stages. Then each plan has half of the rows; those that
    move wait for a turn once."""
    world = World(stages=2, ahead=True)
    for handle in range(1, 5):
        world.add(handle, max_tokens=20)
    plans = step(world, 8)
    assert rows_of(plans)[0] == [0, 1, 2, 3]
    groups = rows_of(plans)[2:8]
    assert sorted(groups[0] + groups[1]) == [0, 1, 2, 3] and len(groups[0]) == 2
    assert groups == groups[:2] * 3
    assert all(plan.micro_batch for plan in plans)
    assert len(world.scheduler.in_flight) == 2  # and one more with the next plan
    world.finish()


def test_a_round_has_a_token_of_each_row() -> None:
    """By which tenants are charged."""
    world, rounds = World(stages=2, ahead=True), list[bool]()
    for handle in range(1, 5):
        world.add(handle, max_tokens=20)
    for _ in range(8):
        step(world, 1)
        rounds.append(world.scheduler.planner.micro_batches.ends_round)
    assert rounds[0] and rounds[2:] in ([True, False] * 3, [False, True] * 3)
    world.finish()


def test_blocks_are_named_by_tokens_that_are_known() -> None:
    """Of a row of which several plans in flight sample, as one that is preempted then."""
    world = World(stages=3, block_size=1, ahead=True)
    world.add(1, 4, max_tokens=20)
    for _ in range(3):
        world.worker.submit(world.scheduler.schedule(0.0))
    (sequence,) = world.scheduler.running
    assert sequence.num_tokens == sequence.num_known_tokens + 3
    assert sequence.num_skippable_tokens == sequence.num_known_tokens == 4
    world.scheduler.prefix_cache.find(sequence)
    assert len(sequence.hashes) == 5
    for _ in range(3):
        world.scheduler.update(world.worker.collect())
    world.scheduler.check_invariants()
    world.finish()


def test_groups_stay_equal_as_sequences_end() -> None:
    """Of groups of 3, 3 and 3 rows one loses all: others move there."""
    world = World(stages=3, rows=9, ahead=True)
    for handle in range(1, 10):
        world.add(handle, max_tokens=9 if handle % 3 else 40)
    step(world, 60)
    sizes = [len(plan.rows) for plan in step(world, 6)]
    assert sizes == [1] * 6
    world.finish()


def test_a_row_alone_is_planned_as_without_stages() -> None:
    world = World(stages=2, ahead=True)
    world.add(1, max_tokens=6)
    plans = step(world, 4)
    assert rows_of(plans) == [[0]] * 4 and not any(plan.micro_batch for plan in plans[1:])
    assert world.scheduler.most_ahead == 1
    world.finish()


def test_parts_of_one_prompt_follow_one_another() -> None:
    """As many as there are stages, and one that waits for them."""
    world = World(stages=3, budget=8, ahead=True)
    world.add(1, 40, max_tokens=2)
    plans = step(world, 4)
    assert [plan.starts for plan in plans] == [[0], [8], [16], [24]]
    assert all(plan.micro_batch for plan in plans) and len(world.scheduler.in_flight) == 3
    world.finish()


def test_short_steps_are_bursts() -> None:
    """As long as they are: what a burst saves would be lost."""
    world = World(stages=2, burst_seconds=0.02, ahead=True)
    for handle in range(1, 3):
        world.add(handle, max_tokens=60)
    plans = step(world, 8)
    assert any(plan.sample_counts for plan in plans)
    assert all(sorted(plan.rows) == [0, 1] for plan in plans if plan.sample_counts)
    world.finish()


def test_a_victim_waits_for_its_token() -> None:
    """It is not admitted before the result of the last plan that samples for it."""
    world = World(stages=3, blocks=7, rows=6, ahead=True)
    for handle in range(1, 7):
        world.add(handle, 3, max_tokens=14)
    world.finish()
    assert world.scheduler.num_preemptions


def test_the_core_sends_as_many_plans_as_stages_and_one_more() -> None:
    house = House(ahead=True, stages=2)
    most, submit = 0, house.worker.submit

    def count(plan: Plan) -> None:
        nonlocal most
        submit(plan)
        most = max(most, len(house.scheduler.in_flight))

    house.worker.submit = count  # type: ignore[method-assign]
    for handle in range(1, 5):
        house.put(add_request(handle, max_tokens=12))
    house.run()
    assert most == 3
    ledger = house.outputs_of(b"a")
    assert all(len(ledger.tokens[handle, 0]) for handle in range(1, 5))
