"""Order of preemption: class, work lost, admission; never a sequence that has just received a block."""

import dataclasses
import random

from engine_core.request import Sequence, Status
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.result import Result
from tests.engine_core.fakes import LIMITS, add_request, make
from tests.engine_core.world import World


def order(world: World) -> list[int]:
    """Handles of what runs, the first victim in front."""
    scheduler = world.scheduler
    return [sequence.request.handle for sequence in scheduler.states.victims_first(scheduler.running)]


def test_a_lower_class_goes_before_less_work() -> None:
    world = World()
    world.add(1, prompt=9, priority=1)
    world.add(2, prompt=3)
    world.add(3, prompt=6, priority=1)
    world.add(4, prompt=5, priority=-7)
    world.step()
    assert order(world) == [3, 1, 2, 4]


def test_of_equals_the_last_one_admitted_goes_first() -> None:
    world = World()
    for handle in (1, 2, 3):
        world.add(handle, prompt=6)
    world.step()
    assert order(world) == [3, 2, 1]


def test_what_others_hold_is_not_lost() -> None:
    """Three blocks of twelve tokens are common; the siblings share one more that is not full."""
    world = World(block_size=4)
    common = list(range(100, 112))
    first = world.add(1, prompt=[*common, 1, 2, 3, 4, 5, 6], max_tokens=20)
    second = world.add(2, prompt=[*common, 7, 8], max_tokens=20, n=2)
    alone = world.add(3, prompt=5, max_tokens=20)
    world.step()
    sequences = first.sequences + second.sequences + alone.sequences
    lost = [world.scheduler.tables.num_tokens_lost(sequence) for sequence in sequences]
    assert lost == [6, 0, 0, 5]
    world.finish()


def test_no_victim_was_given_a_block_in_the_same_plan() -> None:
    """The first in order of admission asks for a block too, but it has the least to lose. (A block for a row
    that the same plan removes would end the worker.)"""
    world = World(blocks=4, block_size=4)
    world.add(1, prompt=3, max_tokens=12)
    world.add(2, prompt=7, max_tokens=8)
    world.step(2)
    plan = world.step()
    assert world.scheduler.num_preemptions == 1
    assert [sequence.request.handle for sequence in world.scheduler.waiting] == [1]
    assert not set(plan.table_rows) & set(plan.removed_rows)
    world.finish()


def test_the_one_with_the_most_work_in_the_best_class_always_goes_on() -> None:
    draw = random.Random(7)
    world = World(blocks=20, block_size=2, rows=6, budget=12)
    for handle in range(1, 40):
        world.add(handle, prompt=draw.randint(1, 12), max_tokens=draw.randint(1, 20), priority=handle % 3)
    while world.scheduler.requests:
        running = [each for each in world.scheduler.running if each.status is Status.RUNNING]
        best = world.scheduler.states.victims_first(running)[-1].row if running else None
        plan = world.step()
        assert best is None or best in plan.rows
    world.finish()
    assert world.scheduler.num_preemptions


def test_no_sequence_is_preempted_over_and_over() -> None:
    """Of sequences under random pressure, 999 in 1000 are preempted four times at most."""
    times: list[int] = []
    for seed in range(60):
        draw = random.Random(seed)
        blocks, size = draw.choice([8, 16, 32, 64]), draw.choice([2, 4, 8, 16])
        scheduler = Scheduler(
            num_blocks=blocks,
            block_size=size,
            max_num_seqs=draw.choice([4, 8, 16, 64]),
            max_num_batched_tokens=draw.choice([16, 64, 512]),
        )
        longest = min(blocks * size, draw.choice([64, 256, 1024]))
        limits = dataclasses.replace(LIMITS, max_model_len=longest, max_num_seqs=scheduler.num_rows)
        sequences = list[Sequence]()
        handle = total = 0
        while total < 10 * blocks * size:
            handle += 1
            prompt, tokens = (draw.randint(1, longest // 2) for _ in range(2))
            n = draw.choice([1, 1, 1, 2, 4])
            message = add_request(
                handle, prompt, max_tokens=tokens, n=n, priority=draw.choice([0, 0, 0, 1]), ignore_eos=True
            )
            request = make(message, limits)
            sequences += request.sequences
            scheduler.add(request)
            total += prompt + n * tokens
        while scheduler.requests:
            plan = scheduler.schedule(0.0)
            assert plan.rows, "a sequence waits, and none runs"
            scheduler.update(Result(plan.step, [500] * len(plan.sample_rows)))
            scheduler.take_outputs()
        assert sum(sequence.num_preemptions for sequence in sequences) == scheduler.num_preemptions
        times += [sequence.num_preemptions for sequence in sequences]
    times.sort()
    assert len(times) > 2000 and times[-1] <= 8
    assert times[int(0.999 * len(times))] <= 4
