"""The swap space: what goes out, what comes back, and what it is weighed against.

The fake worker copies the histories of slots as a real one copies keys and values: a sequence that resumes
with blocks that are not its own is found at once.
"""

import random

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine_core.errors import InvariantError
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.block_tables import BlockTables
from engine_core.kv_cache.host_swap import SwapCosts, SwapSpace
from engine_core.request import NO_TOKEN, FinishReason, Sequence, Status
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.fakes import add_request, make
from tests.engine_core.world import World, columns

ALWAYS = SwapCosts(prefill_us_per_token=1e9, swap_us_per_block=1.0)


def pressed(**options: object) -> World:
    """Two sequences, of which the second one has just been preempted: two full blocks and a half of computed
    tokens, in blocks of 4."""
    world = World(blocks=6, swap_costs=ALWAYS, **({"host_blocks": 10} | options))  # type: ignore[arg-type]
    world.add(1, prompt=7, max_tokens=12)
    world.add(2, prompt=6, max_tokens=12, time_limit=Duration(seconds=5))
    while not world.scheduler.num_preemptions:
        world.step()
    assert len(world.scheduler.waiting) == 1
    return world


def test_a_victim_goes_to_host_memory_and_comes_back() -> None:
    world = pressed(prefix_cache=False)
    out = world.worker.plans[-1]
    (victim,) = world.scheduler.waiting
    kept = world.scheduler.swap.num_tokens(victim)
    assert kept == victim.num_tokens - 1 and len(out.swap_out_blocks) == -(-kept // 4)
    assert not out.swap_in_blocks and victim.num_computed_tokens == 0
    while not (back := world.step()).new_rows:
        pass
    assert back.swap_in_host_blocks == out.swap_out_host_blocks
    assert back.swap_in_blocks == back.new_rows[0].blocks[: len(back.swap_in_blocks)]
    assert (kept, 1) in columns(back), "nothing is computed again"
    world.finish()


def test_what_the_prefix_cache_has_is_not_copied_back() -> None:
    world = pressed()
    (victim,) = world.scheduler.waiting
    world.scheduler.abort(world.scheduler.running[0].request)
    del world.messages[1]
    cached = len(world.scheduler.prefix_cache.find(victim))
    assert cached
    back = world.step()
    assert back.swap_in_host_blocks == world.worker.plans[-2].swap_out_host_blocks[cached:]
    world.finish()


def test_a_victim_is_computed_again_where_that_is_cheaper_or_the_space_is_full() -> None:
    for options in ({"swap_costs": SwapCosts(1.0, 1e9)}, {"host_blocks": 1}, {"host_blocks": 0}):
        world = World(blocks=6, prefix_cache=False, **({"swap_costs": ALWAYS, "host_blocks": 9} | options))  # type: ignore[arg-type]
        world.add(1, prompt=7, max_tokens=12)
        world.add(2, prompt=6, max_tokens=12)
        world.finish()
        assert world.scheduler.num_preemptions
        assert not any(plan.swap_out_blocks or plan.swap_in_blocks for plan in world.worker.plans)


@pytest.mark.parametrize(
    ("blocks", "lost", "cheaper"),
    [(10, 160, True), (10, 10, True), (10, 9, False), (1, 0, False), (125, 125, True)],
)
def test_two_copies_of_a_block_against_a_prompt_of_what_is_lost(
    blocks: int, lost: int, cheaper: bool
) -> None:
    """20 us for a token and 10 us for a copy: a block pays if it saves one token."""
    assert SwapCosts(20.0, 10.0).is_swap_cheaper(blocks, lost) is cheaper


def test_costs_that_were_not_measured_speak_for_the_space_that_is_there() -> None:
    assert SwapCosts().is_swap_cheaper(100, 1)


def test_only_what_would_be_lost_speaks_for_swap() -> None:
    """Siblings hold the prompt: what one of them would have to compute again is little, its table long."""
    costs = SwapCosts(prefill_us_per_token=1.0, swap_us_per_block=1.0)
    world = World(blocks=13, rows=4, host_blocks=50, swap_costs=costs, prefix_cache=False)
    world.add(1, prompt=40, n=3, max_tokens=9)
    while not world.scheduler.num_preemptions:
        plan = world.step()
    assert not plan.swap_out_blocks
    world.finish()


def test_a_swapped_sequence_counts_little_among_those_that_wait() -> None:
    assert pressed().scheduler.waiting.num_tokens == 1
    assert pressed(host_blocks=0, prefix_cache=False).scheduler.waiting.num_tokens > 6


@pytest.mark.parametrize("end", ["abort", "told", "time limit"])
def test_the_end_of_a_waiting_sequence_frees_its_host_blocks(end: str) -> None:
    world = pressed()
    scheduler = world.scheduler
    (victim,) = scheduler.waiting
    assert scheduler.swap.num_free < 10
    if end == "abort":
        scheduler.abort(victim.request)
    elif end == "told":
        scheduler.finish(victim.request, FinishReason.ABORTED)
    else:
        scheduler.schedule(now=6.0)
    assert victim.status is Status.ENDED
    assert scheduler.swap.num_free == 10
    scheduler.check_invariants()


def test_reset_cache_forgets_copies_too() -> None:
    world = pressed()
    world.scheduler.reset_cache()
    assert world.scheduler.swap.num_free == 10
    world.finish()
    assert not any(plan.swap_in_blocks for plan in world.worker.plans)


def test_copies_are_not_trusted_after_a_nan() -> None:
    """The sequence in host memory may have shared a block with the one that went wrong."""
    world = pressed()
    plan = world.scheduler.schedule(0.0)
    assert world.scheduler.update(Result(plan.step, [NO_TOKEN] * len(plan.sample_rows)))
    assert world.scheduler.swap.num_free == 10
    world.scheduler.check_invariants()


def test_a_leader_that_is_swapped_in_its_prompt_goes_on_there_and_its_siblings_fork() -> None:
    world = World(blocks=16, rows=4, budget=4, host_blocks=20, swap_costs=ALWAYS, prefix_cache=False)
    world.add(1, prompt=7, max_tokens=24)
    world.step(2)
    world.add(2, prompt=40, n=3, max_tokens=3, priority=1)
    while not world.scheduler.num_preemptions:
        plan = world.step()
    assert plan.swap_out_blocks and len(world.scheduler.rows.free) == 3
    kept = world.scheduler.swap.num_tokens(next(iter(world.scheduler.waiting)))
    world.finish()
    assert any(start == kept for plan in world.worker.plans for start in plan.starts)
    assert max(len(plan.forks) for plan in world.worker.plans) == 2


def test_the_heir_of_a_swapped_leader_begins_anew() -> None:
    world = World(blocks=16, rows=4, budget=4, host_blocks=20, swap_costs=ALWAYS)
    world.add(1, prompt=7, max_tokens=24)
    world.step(2)
    request = world.add(2, prompt=40, n=3, max_tokens=3, priority=1)
    while not world.scheduler.num_preemptions:
        world.step()
    assert world.scheduler.swap.num_free < 20
    world.scheduler.abort(request, [0])
    assert world.scheduler.swap.num_free == 20
    world.scheduler.check_invariants()
    heir = request.sequences[1]
    assert heir.leads and heir.status is Status.WAITING


def test_the_books_notice_a_host_block_that_is_lost() -> None:
    world = pressed()
    world.scheduler.swap._free.append(0)
    with pytest.raises(InvariantError):
        world.scheduler.check_invariants()


# Pressure.

POLICIES = {
    "recompute": {"host_blocks": 0},
    "swap": {"host_blocks": 10_000, "swap_costs": ALWAYS},
    "cheaper": {"host_blocks": 10_000, "swap_costs": SwapCosts(1.0, 2.0)},
    "scarce": {"host_blocks": 12, "swap_costs": SwapCosts(1.0, 1.0)},
}


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_load_of_ten_times_the_pool(policy: str, ahead: bool) -> None:
    """Every request ends, with the same tokens as alone, whatever the pool's size."""
    preempted = swapped = 0
    for seed in range(6):
        draw = random.Random(seed)
        blocks, size = draw.choice([8, 16, 32, 64]), draw.choice([2, 4])
        world = World(
            blocks=blocks,
            block_size=size,
            rows=draw.choice([4, 8]),
            budget=draw.choice([8, 16, 64]),
            prefix_cache=seed % 3 > 0,
            ahead=ahead,
            **POLICIES[policy],  # type: ignore[arg-type]
        )
        longest, total = min(blocks * size, 60), 0
        while total < 10 * blocks * size:
            prompt, tokens = draw.randint(1, longest // 2), draw.randint(1, longest // 2)
            n = draw.choice([1, 1, 2, 4])
            handle = len(world.messages) + 1
            world.add(handle, prompt=prompt, max_tokens=tokens, n=n, priority=draw.choice([0, 0, 1]))
            total += prompt + n * tokens
        world.finish()
        preempted += world.scheduler.num_preemptions
        swapped += world.scheduler.swap.num_swapped_out
    assert preempted > 20
    assert bool(swapped) is (policy != "recompute")
    if policy == "swap":
        assert swapped == preempted


def test_copies_of_a_plan_that_is_not_executed_are_not_there() -> None:
    """One step ahead, a beam search whose result is outstanding holds what the other one would need: it makes
    way, and no sequence is left to compute. What that plan would have copied out is computed again."""
    world = World(blocks=6, ahead=True, host_blocks=9, swap_costs=ALWAYS, prefix_cache=False)
    world.add(1, prompt=4, max_tokens=5, n=2, beams=beam_search(2))
    world.add(2, prompt=8, max_tokens=6, priority=1, ignore_eos=True)
    world.finish()
    assert world.scheduler.swap.num_swapped_out == world.scheduler.num_preemptions == 1
    assert not any(plan.swap_out_blocks or plan.swap_in_blocks for plan in world.worker.plans)


# The books, against a model of them.


class Books(RuleBasedStateMachine):
    """A swap space and its naive twin: for each sequence, the contents that it must get back."""

    @initialize(num_host_blocks=st.integers(0, 12))
    def start(self, num_host_blocks: int) -> None:
        self.pool = BlockPool(64)
        self.tables = BlockTables(self.pool, 4)
        self.swap = SwapSpace(num_host_blocks, ALWAYS, self.tables)
        self.device: dict[int, tuple[int, int]] = {}  # block -> (sequence, index)
        self.host: dict[int, tuple[int, int]] = {}
        self.kept: dict[Sequence, int] = {}  # -> computed tokens
        self.number = 0

    @rule(num_tokens=st.integers(1, 30), executed=st.sampled_from([True, True, True, False]))
    def swap_out(self, num_tokens: int, executed: bool) -> None:
        """A sequence has computed so many tokens, and is preempted, by a plan that is executed or not."""
        self.number += 1
        sequence = make(add_request(self.number, 31)).sequences[0]
        self.tables.open(sequence, 31, [])
        sequence.num_computed_tokens = num_tokens
        for index, block in enumerate(sequence.blocks):
            self.device[block] = self.number, index
        free, plan = self.swap.num_free, Plan()
        self.swap.swap_out(sequence, plan)
        self.tables.close(sequence)
        sequence.num_computed_tokens = 0
        needed = -(-num_tokens // 4)
        assert len(plan.swap_out_blocks) == (needed if needed <= free else 0)
        for block, host in zip(plan.swap_out_blocks, plan.swap_out_host_blocks, strict=True):
            assert 0 <= host < self.swap.num_blocks
            self.host[host] = self.device[block]
        self.kept[sequence] = num_tokens if needed <= free and executed else 0
        if not executed:
            self.swap.drop_copies_of(plan)

    @rule(data=st.data(), cached=st.integers(0, 7))
    def swap_in(self, data: st.DataObject, cached: int) -> None:
        """It comes back, to so many blocks that the prefix cache has."""
        if not self.kept:
            return
        sequence = data.draw(st.sampled_from(list(self.kept)))
        plan, kept = Plan(), self.kept.pop(sequence)
        self.tables.open(sequence, 31, [])
        sequence.num_computed_tokens = 4 * cached
        self.swap.swap_in(sequence, plan)
        assert sequence.num_computed_tokens == max(kept, 4 * cached)
        restored = {
            block: self.host[host]
            for block, host in zip(plan.swap_in_blocks, plan.swap_in_host_blocks, strict=True)
        }
        needed = range(cached, -(-kept // 4))
        assert restored == {sequence.blocks[i]: (sequence.request.handle, i) for i in needed}
        self.tables.close(sequence)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.kept:
            sequence = data.draw(st.sampled_from(list(self.kept)))
            del self.kept[sequence]
            self.swap.drop(sequence)
            self.swap.drop(sequence)

    @rule(sure=st.sampled_from([False, False, True]))
    def drop_all(self, sure: bool) -> None:
        if sure:
            self.swap.drop_all()
            self.kept = dict.fromkeys(self.kept, 0)

    @invariant()
    def free_and_held_are_all(self) -> None:
        if hasattr(self, "swap"):
            held = sum(-(-kept // 4) for kept in self.kept.values())
            assert self.swap.num_free + held == self.swap.num_blocks
            assert all(self.swap.num_tokens(sequence) == kept for sequence, kept in self.kept.items())
            for sequence, kept in self.kept.items():
                sequence.num_tokens = max(31, kept + 1)
            self.swap.check_invariants(self.kept)


Books.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestBooks = Books.TestCase
