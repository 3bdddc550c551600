"""The prefix cache. The fake worker checks that skipped tokens are computed, for the same namespace."""

import pytest

from engine_core.context import no_token_error
from engine_core.errors import Code, InvariantError
from engine_core.kv_cache import prefix_cache
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.prefix_cache import PrefixCache
from engine_core.request import NO_TOKEN, Sequence
from engine_core.step.result import Result
from tests.engine_core.fakes import add_request, fake_token, make
from tests.engine_core.world import World, columns

BASE = list(range(100, 160))
"""A prompt to share; blocks have 4 tokens."""


def prompt(common: int, *own: int) -> list[int]:
    """So many tokens that others have too, then these."""
    return BASE[:common] + list(own)


# What is found.


def test_a_prefix_is_computed_once() -> None:
    world = World()
    world.add(1, prompt(10))
    world.finish()
    world.add(2, prompt(10, 7, 8))
    assert columns(world.step()) == [(8, 4)], "two full blocks were there"
    assert world.ledger.cached == {1: 0, 2: 8}
    world.finish()


@pytest.mark.parametrize(("length", "found"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8)])
def test_the_last_token_is_always_computed(length: int, found: int) -> None:
    """There would be no logits to sample from; and only whole blocks are found."""
    world = World()
    world.add(1, prompt(length), max_tokens=2)
    world.finish()
    world.add(2, prompt(length), max_tokens=2)
    assert columns(world.step()) == [(found, length - found)]
    world.finish()


def test_requests_that_arrive_together_compute_a_common_prefix_once() -> None:
    """In the very plan that computes it: every layer stores all keys and values before it looks at any."""
    world = World(rows=8, budget=64)
    for handle in range(1, 9):
        world.add(handle, prompt(24, handle, handle), max_tokens=2)
    assert columns(world.step()) == [(0, 26), *[(24, 2)] * 7]
    assert world.scheduler.pool.num_free == 64 - 6 - 8, "the common blocks are held once"
    world.finish()


def test_a_common_prefix_is_shared_as_far_as_the_budget_goes() -> None:
    """A request behind a prompt that is cut waits for it: the rest is found one step later."""
    world = World(budget=16)
    for handle in (1, 2, 3):
        world.add(handle, prompt(24, handle), max_tokens=2)
    assert [columns(world.step()) for _ in range(2)] == [[(0, 16)], [(16, 9), (24, 1), (24, 1)]]
    world.finish()


def test_the_second_turn_finds_the_answer_of_the_first() -> None:
    world = World()
    world.add(1, prompt(6), max_tokens=8, ignore_eos=True)
    world.finish()
    answer = world.ledger.tokens[1, 0]
    world.add(2, [*prompt(6), *answer, 7, 8, 9])
    assert columns(world.step()) == [(12, 5)], "all full blocks of 13: the last token was never computed"
    world.finish()


def test_the_block_that_the_last_computed_token_fills_is_kept() -> None:
    """The sequence ends before it asks for another one."""
    world = World()
    world.add(1, prompt(6), max_tokens=3, ignore_eos=True)
    world.add(2, prompt=5, max_tokens=30, ignore_eos=True)  # so that 1 is not the last of the batch
    world.step(3)
    assert world.ledger.ends
    world.add(3, [*prompt(6), *world.ledger.tokens[1, 0]])
    assert columns(world.step())[1] == (8, 1)
    world.finish()


def test_what_decodes_is_found_while_it_goes_on() -> None:
    world = World()
    world.add(1, prompt(6), max_tokens=20, ignore_eos=True)
    world.add(2, prompt=5, max_tokens=30, ignore_eos=True)
    world.step(8)
    world.add(3, [*prompt(6), *world.ledger.tokens[1, 0]])
    assert columns(world.step())[2] == (12, 2)
    world.finish()


def test_a_preempted_sequence_finds_what_is_left_of_its_blocks() -> None:
    world = World(blocks=8)
    world.add(1, prompt=11, max_tokens=12)
    world.add(2, prompt=11, max_tokens=12)
    world.finish()
    assert world.scheduler.num_preemptions == 1
    (resumed,) = (plan for plan in world.worker.plans[1:] if plan.new_rows)
    assert resumed.starts[-1] == 8, "its tail went first, and was all that the other one needed"
    assert world.ledger.cached == {1: 0, 2: 0}, "said once, of the first admission"


def test_delivered_output_is_found() -> None:
    """A stream that goes on with the engine it had: all but the last tokens are there."""
    world = World()
    request = world.add(1, prompt(6), max_tokens=12, ignore_eos=True)
    world.step(7)
    world.scheduler.abort(request)
    delivered = [fake_token(1, 0, position) for position in range(7)]
    world.ledger.started.clear()
    world.add(1, prompt(6), max_tokens=12, ignore_eos=True, delivered={0: delivered})
    assert columns(world.step()) == [(12, 1)]
    assert world.ledger.cached == {1: 6}, "the prompt's part of it"
    world.finish()


def test_the_part_of_a_prompt_that_was_computed_outlives_an_abort() -> None:
    world = World(budget=10)
    request = world.add(1, prompt(30))
    world.step()
    world.scheduler.abort(request)
    del world.messages[1]
    world.add(2, prompt(30))
    assert columns(world.step()) == [(8, 10)]
    world.finish()


def test_sequences_of_one_prompt_find_and_are_found() -> None:
    world = World()
    world.add(1, prompt(10), n=3, max_tokens=7, ignore_eos=True)
    world.finish()
    world.add(2, prompt(10, 5), n=2, max_tokens=3)
    assert columns(world.step()) == [(8, 3)]
    world.add(3, [*prompt(10), *world.ledger.tokens[1, 2], 5, 5])
    assert world.step().starts[-1] == 16
    world.finish()


def test_equal_blocks_stay_where_they_are() -> None:
    """Two that compute the same in one step: one of the blocks is known, the other one is not."""
    world = World()
    world.add(1, prompt(7), n=2, max_tokens=3, stop_token_ids=range(0, 996), min_tokens=2)
    world.finish()
    assert world.ledger.tokens[1, 0][:2] == world.ledger.tokens[1, 1][:2] == [996, 996]
    assert world.scheduler.pool.num_cached == 2
    world.add(2, [*prompt(7), 996, 5])
    assert columns(world.step()) == [(8, 1)]
    world.finish()


# What is not found.


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({"salt": "a"}, {"salt": "a"}, 8),
        ({"salt": "a"}, {"salt": "b"}, 0),
        ({"salt": "a"}, {}, 0),
        ({"tenant": "t", "salt": "a"}, {"salt": "a"}, 0),
        ({"tenant": "t", "salt": "ab"}, {"tenant": "ta", "salt": "b"}, 0),
        ({"tenant": "t"}, {"tenant": "t"}, 8),
        ({"bypass": True}, {}, 0),
        ({}, {"bypass": True}, 0),
    ],
)
def test_namespaces_do_not_share(first: dict[str, object], second: dict[str, object], found: int) -> None:
    world = World()
    world.add(1, prompt(10), **first)
    world.add(2, prompt(10), **second)
    assert columns(world.step()) == [(0, 10), (found, 10 - found)]
    world.finish()


def test_bypass_leaves_nothing_behind() -> None:
    world = World()
    world.add(1, prompt(10), bypass=True, n=2, max_tokens=9)
    world.finish()
    assert world.scheduler.pool.num_cached == 0 and world.scheduler.prefix_cache.hit_rate.ratio == 0


def test_without_a_prefix_cache_nothing_is_kept_or_found() -> None:
    world = World(prefix_cache=False)
    for handle in (1, 2):
        world.add(handle, prompt(10), max_tokens=9)
    assert columns(world.step()) == [(0, 10), (0, 10)]
    world.finish()
    assert world.scheduler.pool.num_cached == 0


def test_a_prefix_must_be_equal_from_its_first_token_on() -> None:
    world = World()
    world.add(1, prompt(12))
    world.finish()
    world.add(2, [7, *prompt(12)[1:]])
    world.add(3, [*prompt(12)[4:], 5])
    world.add(4, [*prompt(7), 7, *prompt(12)[8:]])
    assert [start for start, _ in columns(world.step())] == [0, 0, 4]
    world.finish()


def test_a_row_without_logits_takes_its_blocks_along() -> None:
    """The keys and values may be wrong, so no other sequence may read them."""
    world = World()
    world.add(1, prompt(10), max_tokens=1)
    world.finish()
    world.add(2, prompt(10, 5))
    plan = world.scheduler.schedule(0.0)
    world.worker.execute(plan)
    assert plan.starts == [8]
    world.scheduler.update(Result(plan.step, [NO_TOKEN]))
    world.scheduler.check_invariants()
    assert world.scheduler.pool.num_cached == 0
    del world.messages[2]
    world.add(3, prompt(10))
    assert columns(world.step()) == [(0, 10)]
    world.finish()


def test_a_row_without_logits_leaves_nothing_behind() -> None:
    """Nor the block that the very step has filled."""
    world = World()
    world.add(1, prompt(7))
    world.add(2, prompt=1, max_tokens=9, bypass=True)
    world.step()
    plan = world.scheduler.schedule(0.0)
    world.worker.execute(plan)
    world.scheduler.update(Result(plan.step, [NO_TOKEN, 5]))
    assert world.scheduler.pool.num_cached == 0


def test_a_row_whose_grammar_failed_leaves_its_blocks() -> None:
    """Its keys and values are right: another request may use them."""
    world = World()
    request = world.add(1, prompt(8, 1))
    plan = world.scheduler.schedule(0.0)
    world.worker.execute(plan)
    failed = world.scheduler.update(Result(plan.step, [NO_TOKEN], row_errors={0: "no"}))
    assert failed == [request] and request.row_error == "no"
    assert no_token_error(request) == (Code.INVALID_ARGUMENT, "GRAMMAR_FAILED", "structured_output: no")
    assert world.scheduler.pool.num_cached > 0


# Reset.


def test_after_a_reset_nothing_is_found() -> None:
    world = World()
    world.add(1, prompt(10), max_tokens=1)
    world.finish()
    world.scheduler.prefix_cache.reset()
    world.scheduler.check_invariants()
    world.add(2, prompt(10))
    assert columns(world.step()) == [(0, 10)]
    world.finish()


def test_what_runs_goes_on_over_a_reset() -> None:
    """Its blocks are not known any more; those that it fills from then on are."""
    world = World()
    for handle in (1, 2):
        world.add(handle, prompt(10), max_tokens=12, ignore_eos=True)
    world.step(2)
    world.scheduler.prefix_cache.reset()
    world.scheduler.check_invariants()
    assert world.scheduler.pool.num_cached == 0
    world.step(6)
    assert world.scheduler.pool.num_cached == 4 and not found(world, prompt(10))
    world.add(3, prompt(10), max_tokens=1)
    assert world.step().starts[-1] == 0
    world.finish()
    world.add(4, [*prompt(10), *world.ledger.tokens[1, 0]])
    assert world.step().starts == [20]
    world.finish()


# Room.


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    world = World(blocks=6)
    world.add(1, prompt(17), max_tokens=1)
    world.finish()
    world.add(2, prompt=11, max_tokens=1)
    world.finish()
    world.add(3, prompt(17), max_tokens=1)
    assert columns(world.step()) == [(12, 5)], "of five blocks the last two went, the blank one before"
    world.finish()


def test_the_least_recently_used_goes_first() -> None:
    world = World(blocks=6)
    for handle, first in ((1, 10), (2, 20)):
        world.add(handle, [first] * 9, max_tokens=1)
        world.finish()
    world.add(3, [10] * 9, max_tokens=1)
    world.finish()
    world.add(4, [30] * 12, max_tokens=1)
    world.finish()
    assert len(found(world, [10] * 9)) == 2 and len(found(world, [20] * 9)) == 1


def found(world: World, tokens: list[int]) -> list[int]:
    """The blocks that a prompt would find."""
    return world.scheduler.prefix_cache.find(make(add_request(99, tokens)).sequences[0])


def test_blocks_that_are_found_are_not_evicted_for_the_same_sequence() -> None:
    """All blocks are free, and the prefix's are the next ones to go."""
    world = World(blocks=6)
    world.add(1, prompt(17), max_tokens=1)
    world.finish()
    world.add(2, prompt(16, *range(5)), max_tokens=2)
    assert columns(world.step()) == [(16, 5)]
    world.finish()


def test_blocks_that_others_hold_cost_nothing_at_admission() -> None:
    world = World(blocks=8)
    world.add(1, prompt(18), max_tokens=6)
    world.step()
    world.add(2, prompt(18, 5), max_tokens=1)
    assert columns(world.step()) == [(18, 1), (16, 3)], "3 are free: one for each tail, one to grow"
    world.finish()
    assert world.scheduler.num_preemptions == 0


def test_free_blocks_that_are_found_cost_what_all_cost() -> None:
    """They are free now, and are not any more afterwards: no sequence is admitted just to be preempted."""
    world = World(blocks=8)
    world.add(1, prompt(17), max_tokens=1)
    world.finish()
    world.add(2, prompt=6, max_tokens=6)
    world.step()
    world.add(3, prompt(18, 5, 6, 7), max_tokens=1)
    world.step()
    assert world.ledger.started == [1, 2], "6 are free and would do, but for the growth of the second"
    world.finish()
    assert world.scheduler.num_preemptions == 0


def test_an_engine_that_is_empty_but_for_its_cache_admits_whatever_is_valid() -> None:
    world = World(blocks=16, rows=4)
    for handle in (1, 2, 3):
        world.add(handle, prompt(60), n=4, max_tokens=4)
        world.finish()
    assert world.ledger.cached[3]


# Figures.


def test_figures() -> None:
    world = World(rows=1)
    scheduler = world.scheduler
    world.add(1, prompt(10), max_tokens=2)
    world.step()
    assert scheduler.prefix_cache.hit_rate.ratio == 0
    world.add(2, prompt(10), max_tokens=2)
    world.add(3, prompt(10), max_tokens=2, bypass=True)
    assert scheduler.waiting.num_tokens == 2 + 10, "what the cache will serve does not count"
    world.finish()
    assert scheduler.prefix_cache.hit_rate.ratio == 8 / 20 and scheduler.waiting.num_tokens == 0


# Hashes.


def sequence(handle: int = 1, tokens: int | list[int] = 12, **names: str) -> Sequence:
    return make(add_request(handle, tokens, **names)).sequences[0]  # type: ignore[arg-type]


def hashes(cache: PrefixCache, of: Sequence) -> list[bytes]:
    assert cache.find(of) == []
    return of.hashes


def test_hashes_are_chained() -> None:
    cache = PrefixCache(BlockPool(8), 4)
    base = hashes(cache, sequence(tokens=[*range(3, 12), 5]))
    assert len({*base}) == 3 and {len(each) for each in base} == {16}
    assert hashes(cache, sequence(tokens=[*range(3, 12), 6])) == base, "the third block is not full"
    changed = hashes(cache, sequence(tokens=[99, *range(4, 12), 5]))
    assert [a == b for a, b in zip(base, changed, strict=True)] == [True, False, False]
    for names in ({"salt": "x"}, {"tenant": "x"}):
        assert {*hashes(cache, sequence(tokens=[*range(3, 12), 5], **names))}.isdisjoint(base)


def test_hashes_differ_from_start_to_start() -> None:
    """A client cannot prepare two prompts that collide."""
    first, second = (hashes(PrefixCache(BlockPool(8), 4), sequence()) for _ in range(2))
    assert {*first}.isdisjoint(second)


def test_a_hash_covers_prompt_and_output_alike() -> None:
    cache = PrefixCache(BlockPool(8), 4)
    whole = make(add_request(1, BASE[:14])).sequences[0]
    parts = make(add_request(1, BASE[:6], max_tokens=20, delivered={0: BASE[6:14]})).sequences[0]
    assert hashes(cache, whole) == hashes(cache, parts)
    assert parts.token_bytes(4, 12) == whole.token_bytes(4, 12)
    assert parts.token_bytes(8, 14) == whole.token_bytes(8, 14)


def test_broken_books_are_found() -> None:
    """Blocks known as what they are not, too early, or under hashes of other tokens."""

    def running() -> World:
        world = World()
        world.add(1, prompt(10), max_tokens=9)
        world.step()
        return world

    world = running()
    world.scheduler.pool.keep(world.scheduler.running[0].blocks[2], b"partial")
    with pytest.raises(InvariantError, match="under another content"):
        world.scheduler.check_invariants()
    world = running()
    world.scheduler.running[0].num_committed = 3
    with pytest.raises(InvariantError, match="before it was full"):
        world.scheduler.check_invariants()
    world = running()
    world.scheduler.running[0].hashes[2] = b"other"
    with pytest.raises(InvariantError, match="not those of its tokens"):
        world.scheduler.check_invariants()
    world = running()
    pool, (block, *_) = world.scheduler.pool, world.scheduler.running[0].blocks
    pool.forget([block])
    pool.keep(block, b"other")
    with pytest.raises(InvariantError, match="under another content"):
        world.scheduler.check_invariants()


def test_a_hash_that_collides_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake worker, on which all these tests rely, can tell: here the hash is cut to four bits."""
    whole = prefix_cache.block_hash
    monkeypatch.setattr(prefix_cache, "block_hash", lambda *block: bytes([whole(*block)[0] & 15]))
    world = World(block_size=1)
    for handle in range(1, 40):
        world.add(handle, [handle, 100 + handle, 200 + handle], max_tokens=1)
    with pytest.raises(AssertionError, match="what is not its own"):
        while (plan := world.scheduler.schedule(0.0)).rows:
            world.scheduler.update(Result(plan.step, world.worker.execute(plan)))


# What stands in place of tokens.


@pytest.mark.parametrize(
    ("contents", "found"),
    [
        ({5: b"image", 6: b"image"}, 8),
        ({5: b"image", 6: b"other"}, 4),
        ({5: b"image"}, 4),
        ({}, 4),
        ({2: b"x"}, 0),
    ],
)
def test_a_prefix_with_other_content_is_another_prefix(contents: dict[int, bytes], found: int) -> None:
    """The tokens are the same placeholders; blocks have 4 tokens."""
    world = World()
    for handle, content_hashes in ((1, {5: b"image", 6: b"image"}), (2, contents)):
        message = add_request(handle, prompt(9), max_tokens=2)
        request = make(message)
        request.content_hashes = content_hashes
        world.messages[handle] = message
        world.worker.namespaces[handle] = ("", "")
        world.scheduler.add(request)
        world.finish()
    assert world.ledger.cached[2] == found


def test_content_hashes_of_a_block_are_told_apart() -> None:
    """By position and by length, not only by their bytes one after another."""
    (sequence,) = make(add_request(1, prompt(8))).sequences
    seen = set()
    for contents in ({}, {0: b"ab"}, {1: b"ab"}, {0: b"a", 1: b"b"}, {4: b"ab"}):
        sequence.request.content_hashes = contents
        seen.add(sequence.block_content(0, 4))
    assert len(seen) == 4, "position 4 is in the next block"
