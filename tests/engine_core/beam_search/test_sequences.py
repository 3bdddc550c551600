"""Beam searches in the scheduler, over a fake model: rows, blocks, preemption, ends."""

import dataclasses

import pytest

from engine_core.beam_search import BeamSearch
from engine_core.request import NO_TOKEN, FinishReason, Request
from engine_core.scheduler.states.beam_group import BeamGroup
from engine_core.step.result import Result
from tests.engine_core import world as worlds
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.fakes import LIMITS, run
from tests.engine_core.world import World


def search_of(world: World, request: Request) -> BeamSearch:
    group = world.scheduler.states.groups[request]
    assert isinstance(group, BeamGroup)
    return group.search


@pytest.mark.parametrize("ahead", [False, True])
def test_searches_and_others(ahead: bool):
    world = World(blocks=64, rows=8, ahead=ahead)
    for handle in range(1, 13):
        if handle % 2:
            width = 1 + handle % 4
            beams = beam_search(width, handle % 3 - 0.5, handle % 5 == 0)
            world.add(handle, prompt=3 + handle, n=width, beams=beams, max_tokens=14)
        else:
            world.add(handle, prompt=3 + handle, max_tokens=14)
    world.finish()


def test_sixteen_beams_hold_the_blocks_of_a_long_prompt_once(monkeypatch: pytest.MonkeyPatch):
    """1,000 tokens are 62 full blocks of 16 and 8 tokens more. Each beam has a copy of those 8 with its own
    tokens behind them: no step needs more than 62 + 16 blocks, where 16 separate rows would need 1,008."""
    limits = dataclasses.replace(LIMITS, max_model_len=2000, num_blocks=78, block_size=16)
    monkeypatch.setattr(worlds, "LIMITS", limits)
    world = World(blocks=78, block_size=16, rows=16, budget=256)
    request = world.add(1, prompt=1000, n=16, beams=beam_search(16, early_stopping=True), max_tokens=8)
    most = 0
    while not world.ledger.ends:
        world.step()
        held = world.scheduler.pool.num_blocks - world.scheduler.pool.num_free
        most = max(most, held)
        tables = [sequence.blocks[:62] for sequence in request.sequences if sequence.blocks]
        assert all(table == tables[0] for table in tables), "the prompt's blocks are the same ones"
    assert 62 + 2 <= most <= 62 + 16
    assert len(world.ledger.ends) == 16
    world.assert_empty()


def test_all_beams_go_in_one_step_and_fork_in_the_rows_that_they_have():
    world = World(blocks=64, rows=4)
    world.add(1, prompt=6, beams=beam_search(4), max_tokens=20, ignore_eos=True)
    first = world.step()
    assert len(first.rows) == 1 and first.new_rows[0].num_beam_candidates == 4
    second = world.step()
    assert len(second.rows) == 4 and sorted(second.append_rows) == [0, 1, 2, 3]
    assert len(second.forks) == 3 and not second.removed_rows, "the rows were reserved"
    for plan in (world.step() for _ in range(8)):
        assert sorted(plan.rows) == sorted(plan.append_rows) == [0, 1, 2, 3]
        assert sorted(fork.row for fork in plan.forks) == sorted(plan.removed_rows)
    world.finish()


def test_a_search_sits_out_while_its_result_is_under_way():
    world = World()
    world.add(1, beams=beam_search(2), max_tokens=9)
    world.add(2, max_tokens=9, ignore_eos=True)
    scheduler, worker = world.scheduler, world.worker
    worker.submit(scheduler.schedule(0.0))
    rows = {sequence.request.handle: sequence.row for sequence in scheduler.running}
    ahead = scheduler.schedule(0.0)
    assert ahead.rows == [rows[2]]
    worker.submit(ahead)
    for _ in range(2):
        scheduler.update(worker.collect())
    assert len(scheduler.schedule(0.0).rows) == 3


@pytest.mark.parametrize("ahead", [False, True])
def test_a_search_that_is_preempted_begins_anew(ahead: bool):
    world = World(blocks=14, rows=8, ahead=ahead)
    request = world.add(1, prompt=12, n=3, beams=beam_search(3), max_tokens=16, ignore_eos=True, priority=1)
    run(world.scheduler, world.worker, world.ledger, steps=6, ahead=ahead)
    assert search_of(world, request).length > 2
    for handle in (2, 3, 4):
        world.add(handle, prompt=4, max_tokens=30, ignore_eos=True)
    world.finish()
    assert world.scheduler.num_preemptions > 0


def test_a_time_limit_ends_with_the_best_so_far():
    world = World()
    request = world.add(1, n=2, beams=beam_search(3), max_tokens=20, ignore_eos=True)
    world.step(5)
    world.scheduler.finish(request, FinishReason.TIME_LIMIT)
    run(world.scheduler, world.worker, world.ledger)
    assert [len(world.ledger.tokens[1, index]) for index in range(2)] == [5, 5]
    assert world.ledger.ends == {(1, index): FinishReason.TIME_LIMIT for index in range(2)}
    world.assert_empty()


def test_a_time_limit_before_anything_was_computed():
    world = World()
    request = world.add(1, n=2, beams=beam_search(3))
    world.scheduler.finish(request, FinishReason.TIME_LIMIT)
    run(world.scheduler, world.worker, world.ledger)
    assert world.ledger.ends == {(1, index): FinishReason.TIME_LIMIT for index in range(2)}
    assert not any(world.ledger.tokens.values())
    world.assert_empty()


def test_a_hypothesis_of_a_search_that_is_ended_does_not_look_like_its_result():
    """It ended by a stop token; but the search might have found better ones."""
    world = World()
    request = world.add(1, n=4, beams=beam_search(4, 2.0), max_tokens=20, stop_token_ids=[100, 101, 102])
    search = search_of(world, request)
    while not any(request.ending(result.output)[0] for result in search.results() if result.output):
        world.step()
    assert request.num_live, "and the search is not over"
    world.scheduler.finish(request, FinishReason.ABORTED)
    run(world.scheduler, world.worker, world.ledger)
    assert world.ledger.ends == {(1, index): FinishReason.ABORTED for index in range(4)}
    world.assert_empty()


def test_beams_are_aborted_together():
    world = World()
    request = world.add(1, n=2, beams=beam_search(3), max_tokens=20, ignore_eos=True)
    world.step(4)
    world.scheduler.abort(request, {0})
    assert request.num_live == 3, "one result alone cannot be given up"
    world.scheduler.abort(request, {0, 1})
    run(world.scheduler, world.worker, world.ledger)
    assert not world.ledger.ends
    world.assert_empty()


def test_a_beam_without_candidates_ends_the_request():
    world = World()
    request = world.add(1, n=2, beams=beam_search(3), max_tokens=20, ignore_eos=True)
    world.step(3)
    plan = world.scheduler.schedule(0.0)
    world.worker.submit(plan)
    result = world.worker.collect()
    tokens = [*result.token_ids[:-1], NO_TOKEN]
    failed = world.scheduler.update(
        Result(plan.step, tokens, beam_token_ids=result.beam_token_ids, beam_logprobs=result.beam_logprobs)
    )
    assert failed == [request]
    run(world.scheduler, world.worker, world.ledger)
    world.assert_empty()


def test_what_a_search_has_found_is_in_the_prefix_cache():
    """The next turn of a chat goes on from the best answer."""
    world = World(blocks=64, rows=4)
    world.add(1, prompt=9, beams=beam_search(3), max_tokens=15, ignore_eos=True)
    run(world.scheduler, world.worker, world.ledger)
    answer = world.ledger.tokens[1, 0]
    prompt = [3 + (7 + i) % 994 for i in range(9)]
    world.add(2, prompt=[*prompt, *answer, 5, 6, 7])
    run(world.scheduler, world.worker, world.ledger)
    assert world.ledger.cached[2] >= 16
