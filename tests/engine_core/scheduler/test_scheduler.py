"""The scheduler, one story each. Every step goes through the fake worker, which checks the plan."""

import dataclasses
import gc
import weakref

import pytest

from engine_core.request import NO_TOKEN, FinishReason, Request, Sequence, Status
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from tests.engine_core.fakes import EOS, VOCAB, add_request, expected_output, fake_token, make, run
from tests.engine_core.world import World, columns

# No phases.


def test_a_prompt_is_computed_then_one_token_per_step() -> None:
    world = World()
    world.add(prompt=5, max_tokens=3)
    plan = world.step()
    assert columns(plan) == [(0, 5)] and plan.sample_rows == plan.rows and plan.sample_sources == [0]
    assert columns(world.step()) == [(5, 1)]
    assert columns(world.step()) == [(6, 1)]
    world.finish()
    assert len(world.worker.plans) == 3, "the last token needs no step of its own"


def test_a_long_prompt_is_computed_in_chunks_and_sampled_once() -> None:
    world = World(budget=8)
    world.add(prompt=20, max_tokens=2)
    plans = [world.step() for _ in range(4)]
    assert [columns(plan) for plan in plans] == [[(0, 8)], [(8, 8)], [(16, 4)], [(20, 1)]]
    assert [len(plan.sample_rows) for plan in plans] == [0, 0, 1, 1]
    assert not any(plan.table_rows for plan in plans[:3]), "the whole prompt's blocks came with the row"
    world.finish()


def test_a_long_prompt_does_not_stop_sequences_that_decode() -> None:
    world = World(budget=8)
    world.add(1, prompt=4, max_tokens=10)
    world.step()
    world.add(2, prompt=20)
    plan = world.step()
    assert columns(plan) == [(4, 1), (0, 7)]
    assert plan.sample_rows == [plan.rows[0]] and plan.sample_sources == [0]
    assert columns(world.step()) == [(5, 1), (7, 7)]
    world.finish()


def test_a_prompt_fills_what_another_leaves_of_the_budget() -> None:
    world = World(budget=8)
    world.add(1, prompt=5)
    world.add(2, prompt=5)
    assert columns(world.step()) == [(0, 5), (0, 3)]
    assert columns(world.step()) == [(5, 1), (3, 2)]
    world.finish()


def test_every_running_sequence_advances_in_every_step() -> None:
    """With more rows than budget, the last ones would starve; so there are no more rows than budget."""
    world = World(budget=3, rows=8)
    for handle in range(1, 7):
        world.add(handle, prompt=2, max_tokens=5)
    while world.scheduler.requests:
        before = list(world.scheduler.running)
        plan = world.step()
        live = [sequence for sequence in before if sequence.status is Status.RUNNING]
        assert {sequence.row for sequence in live} <= {*plan.rows}
    world.finish()


# Admission.


def test_first_come_first_served() -> None:
    world = World(rows=1)
    for handle in (3, 1, 2):
        world.add(handle)
    run(world.scheduler, world.worker, world.ledger)
    assert world.ledger.started == [3, 1, 2]
    world.finish()


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    world = World(blocks=8)
    world.add(1, prompt=18, max_tokens=4)
    world.step()
    world.add(2, prompt=20, max_tokens=2)
    world.add(3, prompt=1, max_tokens=2)
    world.step()
    assert world.ledger.started == [1]
    world.finish()
    assert world.ledger.started == [1, 2, 3]


def test_admission_looks_at_the_whole_prompt() -> None:
    """The budget would let a first chunk in, but there are no blocks for the rest."""
    world = World(blocks=8, budget=8)
    world.add(1, prompt=14, max_tokens=8)
    world.step(3)
    assert world.scheduler.pool.num_free == 4
    world.add(2, prompt=17)
    world.step()
    assert world.ledger.started == [1]
    world.finish()
    assert world.scheduler.num_preemptions == 0


def test_no_sequence_is_admitted_just_to_be_preempted() -> None:
    """A prompt that takes the last block would lose it to the first running sequence that needs one."""
    world = World(blocks=5)
    world.add(1, prompt=7, max_tokens=9)
    world.step()
    world.add(2, prompt=11, max_tokens=2)
    world.step()
    assert world.ledger.started == [1], "3 blocks are free and would do, but for the growth of the first"
    world.finish()
    assert world.scheduler.num_preemptions == 0


def test_admission_leaves_a_block_for_each_sibling() -> None:
    """They share the prompt's last block only until their first token is written."""
    world = World(blocks=8)
    world.add(1, prompt=3, max_tokens=9)
    world.step()
    world.add(2, prompt=18, n=3, max_tokens=2)
    world.step()
    assert world.ledger.started == [1], "7 are free; 5 for the prompt, 2 for siblings, 1 for the running one"
    world.finish()
    assert world.scheduler.num_preemptions == 0


def test_an_empty_engine_admits_whatever_is_valid() -> None:
    """n sequences of a prompt that fills the pool: the room for their growth is not there, ever."""
    world = World(blocks=16, rows=4)
    world.add(prompt=63, n=4, max_tokens=1)
    world.finish()
    world = World(blocks=16, rows=4)
    world.add(prompt=60, n=4, max_tokens=9)
    world.finish()


def test_the_time_in_the_queue_is_told_once() -> None:
    world = World(rows=1)
    world.add(1, arrival=1.0)
    world.add(2, arrival=1.5)
    scheduler = world.scheduler
    scheduler.schedule(1.25)
    outputs = scheduler.take_outputs()
    assert [(start.request.handle, start.queued) for start in outputs.started] == [(1, 0.25)]


# Blocks and preemption.


def test_blocks_are_added_when_a_sequence_grows() -> None:
    world = World()
    world.add(prompt=6, max_tokens=8)
    plans = [world.step() for _ in range(4)]
    assert len(plans[0].new_rows[0].blocks) == 2, "6 tokens and the next one"
    assert [plan.table_starts for plan in plans] == [[], [], [], [2]], "slot 8 is the first of block 2"
    world.finish()


def test_the_last_token_of_a_sequence_needs_no_slot() -> None:
    world = World(blocks=2)
    world.add(prompt=8, max_tokens=1)
    world.finish()
    assert len(world.worker.plans) == 1


def test_the_last_one_admitted_is_preempted_and_computed_again() -> None:
    world = World(blocks=6)
    world.add(1, prompt=7, max_tokens=12)
    world.add(2, prompt=7, max_tokens=12)
    world.step()
    assert world.scheduler.pool.num_free == 2
    while not world.scheduler.num_preemptions:
        plan = world.step()
    second = next(iter(world.scheduler.waiting))
    assert second.request.handle == 2 and second.row == -1
    assert len(plan.removed_rows) == 1 and len(plan.rows) == 1
    held = len(world.ledger.tokens[2, 0])
    world.finish()
    resumed = [new for plan in world.worker.plans for new in plan.new_rows][-1]
    assert len(resumed.token_ids) == 7 + held and resumed.prompt_len == 7, "prompt and output, as one prompt"


def test_no_sequence_is_admitted_in_a_step_that_preempts() -> None:
    world = World(blocks=6)
    world.add(1, prompt=7, max_tokens=12)
    world.add(2, prompt=7, max_tokens=12)
    world.add(3, prompt=1, max_tokens=1)
    while not world.scheduler.num_preemptions:
        plan = world.step()
    assert not plan.new_rows
    world.finish()


def test_a_preempted_sequence_is_the_first_to_come_back() -> None:
    world = World(blocks=6)
    world.add(1, prompt=7, max_tokens=9)
    world.add(2, prompt=7, max_tokens=9)
    world.step()
    world.add(3, prompt=7, max_tokens=2)
    world.finish()
    assert world.scheduler.num_preemptions == 1
    order = [new.parameters.sampling.seed for plan in world.worker.plans for new in plan.new_rows]
    assert order == [1, 2, 2, 3]


def test_a_sequence_may_preempt_itself() -> None:
    """The last one admitted is also the one that needs a block: it goes back to the queue."""
    world = World(blocks=4)
    world.add(1, prompt=5, max_tokens=9)
    world.add(2, prompt=3, max_tokens=9)
    world.finish()
    assert world.scheduler.num_preemptions >= 1


def test_a_pool_far_too_small_for_the_load_still_serves_it() -> None:
    world = World(blocks=8, rows=6, budget=16)
    for handle in range(1, 21):
        world.add(handle, prompt=1 + handle % 13, max_tokens=1 + handle % 17, n=1 + handle % 3)
    world.finish()
    assert world.scheduler.num_preemptions


# Several sequences of one prompt.


@pytest.mark.parametrize("prompt", [3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_sequences_share_the_prompt_and_part_ways_by_copy(prompt: int, n: int) -> None:
    """The prompt ends inside a block, at its end, or just behind it."""
    world = World()
    world.add(prompt=prompt, n=n, max_tokens=6)
    plan = world.step()
    assert columns(plan) == [(0, prompt)], "the prompt is computed once"
    assert len(plan.forks) == n - 1 and plan.sample_sources == [0] * n
    assert [fork.sequence_index for fork in plan.forks] == list(range(1, n))
    prompt_blocks = -(-prompt // 4)
    reserved = -(-(prompt + 1) // 4) - prompt_blocks  # for the leader's next token
    assert world.scheduler.pool.num_free == 64 - prompt_blocks - reserved, "shared, not copied"
    plan = world.step()
    ends_inside_a_block = prompt % 4 != 0
    assert len(plan.copy_sources) == (n - 1 if ends_inside_a_block else 0), "the last one keeps the block"
    assert len({*plan.copy_targets}) == len(plan.copy_targets)
    world.finish()
    assert not any(plan.copy_sources for plan in world.worker.plans[2:])


def test_a_prompt_in_chunks_is_forked_when_it_is_complete() -> None:
    world = World(budget=8)
    world.add(prompt=18, n=3, max_tokens=3)
    plans = [world.step() for _ in range(3)]
    assert [len(plan.forks) for plan in plans] == [0, 0, 2]
    assert [len(plan.sample_rows) for plan in plans] == [0, 0, 3]
    world.finish()


def test_rows_for_all_sequences_are_reserved_at_admission() -> None:
    """Where a computed prompt is not found again, siblings begin with their leader."""
    world = World(rows=4, budget=8, prefix_cache=False)
    world.add(1, prompt=12, n=3, max_tokens=2)
    world.add(2, prompt=2, n=2, max_tokens=2)
    world.step(2)
    assert world.ledger.started == [1], "1 row is free, 2 are needed"
    world.finish()


@pytest.mark.parametrize("ahead", [False, True])
def test_siblings_begin_as_rows_become_free(ahead: bool) -> None:
    """They compute no more of the prompt than its last block, and another tenant's request comes between."""
    world = World(rows=4, blocks=64, ahead=ahead)
    world.add(1, prompt=2, max_tokens=12, ignore_eos=True, tenant="many")
    world.add(2, prompt=2, max_tokens=4, ignore_eos=True, tenant="many")
    world.step()
    request = world.add(3, prompt=9, n=4, max_tokens=8, ignore_eos=True, tenant="many")
    world.step()
    assert request.num_running == 2 and not request.forking
    world.add(4, prompt=2, max_tokens=2, ignore_eos=True, tenant="one")
    world.step(3)
    assert {sequence.request.handle for sequence in world.scheduler.running} == {1, 3, 4}
    world.finish()
    later = [new.sequence_index for plan in world.worker.plans for new in plan.new_rows[:]]
    assert later.count(0) == 4 and sorted(later)[4:] == [2, 3]
    computed = sum(sum(plan.counts) for plan in world.worker.plans)
    assert computed == (2 + 11) + (2 + 3) + (9 + 4 * 7) + (2 + 1) + 2 * 1, "of the prompt, one token each"


def test_a_preempted_sibling_is_computed_on_its_own() -> None:
    world = World(blocks=6)
    world.add(prompt=6, n=3, max_tokens=8)
    world.finish()
    assert world.scheduler.num_preemptions
    assert sum(len(plan.forks) for plan in world.worker.plans) == 2


def test_a_leader_preempted_in_its_prompt_gives_all_rows_back() -> None:
    world = World(blocks=16, rows=4, budget=4)
    world.add(1, prompt=7, max_tokens=24)
    world.step(2)
    world.add(2, prompt=40, n=3, max_tokens=3, priority=1)
    world.step()
    assert world.scheduler.running[-1].leads and not world.scheduler.rows.free
    while not world.scheduler.num_preemptions:
        world.step()
    assert len(world.scheduler.rows.free) == 3
    world.finish()


def test_delivered_sequences_do_not_fork() -> None:
    """Each comes back with its own output, so each is computed as its own row."""
    world = World()
    delivered = {0: [fake_token(1, 0, p) for p in range(2)]}
    world.add(prompt=5, n=2, max_tokens=5, delivered=delivered)
    plan = world.step()
    assert [(len(new.token_ids), new.prompt_len) for new in plan.new_rows] == [(7, 5), (5, 5)]
    assert not plan.forks
    world.finish()


# The end of a sequence.


def prompt_with(token_at: int, want: int) -> int:
    """A handle (so a seed) whose output has the token `want` first at this position."""
    for handle in range(1, 1_000_000):
        output = [fake_token(handle, 0, position) for position in range(token_at + 1)]
        if output[-1] == want and want not in output[:-1]:
            return handle
    raise AssertionError


def test_eos_ends_a_sequence_and_is_part_of_it() -> None:
    world = World()
    handle = prompt_with(2, EOS)
    world.add(handle, max_tokens=9)
    world.finish()
    assert world.ledger.ends[handle, 0] is FinishReason.EOS
    assert world.ledger.tokens[handle, 0][-1] == EOS and len(world.ledger.tokens[handle, 0]) == 3


def test_eos_is_a_token_like_others_when_it_is_ignored() -> None:
    world = World()
    handle = prompt_with(2, EOS)
    world.add(handle, max_tokens=9, ignore_eos=True)
    world.finish()
    assert world.ledger.ends[handle, 0] is FinishReason.MAX_TOKENS


def test_eos_as_a_stop_token_stops_though_it_is_ignored_as_eos() -> None:
    world = World()
    handle = prompt_with(2, EOS)
    world.add(handle, max_tokens=9, ignore_eos=True, stop_token_ids=[EOS])
    world.finish()
    assert world.ledger.ends[handle, 0] is FinishReason.STOP


def test_a_stop_token_ends_a_sequence() -> None:
    world = World()
    world.add(1, max_tokens=9, stop_token_ids=[fake_token(1, 0, 3)])
    world.finish()
    assert world.ledger.ends[1, 0] is FinishReason.STOP
    assert len(world.ledger.tokens[1, 0]) == 4


def test_stop_tokens_are_neither_sampled_nor_matched_before_min_tokens() -> None:
    world = World()
    world.add(1, max_tokens=9, min_tokens=3, stop_token_ids=range(VOCAB - 1))
    world.finish()
    output = world.ledger.tokens[1, 0]
    assert output[:3] == [VOCAB - 1] * 3 and len(output) == 4


def test_a_stop_token_that_a_worker_samples_too_early_ends_nothing() -> None:
    world = World()
    world.add(1, max_tokens=3, min_tokens=3, stop_token_ids=[7])
    plan = world.scheduler.schedule(0.0)
    assert plan.sample_rows
    world.scheduler.update(Result(plan.step, [7]))
    assert world.scheduler.requests


def test_the_context_ends_a_sequence() -> None:
    world = World()
    world.add(1, prompt=60, max_tokens=100)
    world.finish()
    assert world.ledger.ends[1, 0] is FinishReason.CONTEXT_LENGTH
    assert len(world.ledger.tokens[1, 0]) == 4, "of 64"


def test_max_tokens_is_named_where_it_coincides_with_the_context() -> None:
    world = World()
    world.add(1, prompt=60, max_tokens=4)
    world.finish()
    assert world.ledger.ends[1, 0] is FinishReason.MAX_TOKENS


@pytest.mark.parametrize("n", [1, 3])
def test_no_tokens_asked_is_no_work(n: int) -> None:
    world = World()
    world.add(1, n=n, max_tokens=0)
    assert world.scheduler.has_finishes
    world.finish()
    assert not world.worker.plans


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ([10, 11, 12, 13], FinishReason.MAX_TOKENS),
        ([10, EOS], FinishReason.EOS),
        ([10, 77], FinishReason.STOP),
    ],
)
def test_delivered_output_may_have_been_complete(output: list[int], reason: FinishReason) -> None:
    """The frontend lost its engine between the last token and the news of the end."""
    world = World()
    world.add(1, max_tokens=4, stop_token_ids=[77], delivered={0: output})
    world.finish()
    assert world.ledger.ends[1, 0] is reason
    assert not world.worker.plans


def test_positions_go_on_after_delivered_output() -> None:
    """The ledger would refuse any other position, and the tokens are those of an unbroken run."""
    world = World()
    world.add(1, max_tokens=9, delivered={0: [fake_token(1, 0, p) for p in range(5)]})
    world.finish()
    assert columns(world.worker.plans[0]) == [(0, 10)]


# Ends that come from outside.


def sequence_in(world: World, status: Status) -> Sequence:
    """Brings a sequence of request 1 into a state."""
    if status is Status.WAITING:
        world.add(9, n=8, max_tokens=30)
        world.step()
        return world.add(1, max_tokens=30).sequences[0]
    request = world.add(1, prompt=40, n=3, max_tokens=9)
    world.step()
    if status is Status.RUNNING:
        return request.sequences[0]
    assert status is Status.FORKING
    return request.sequences[1]


@pytest.mark.parametrize("status", [Status.WAITING, Status.RUNNING, Status.FORKING])
def test_an_abort_ends_a_request_in_every_state(status: Status) -> None:
    world = World(budget=16)
    sequence = sequence_in(world, status)
    assert sequence.status is status
    request = sequence.request
    world.scheduler.abort(request)
    world.scheduler.check_invariants()
    world.scheduler.abort(request)
    assert world.scheduler.requests.by_id("request-1") is None
    del world.messages[1]
    world.finish()
    assert not world.ledger.ends.keys() & {(1, 0), (1, 1), (1, 2)}, "not a word about it"


def test_blocks_and_rows_are_free_at_once() -> None:
    world = World()
    request = world.add(1, max_tokens=30, n=2)
    world.step(3)
    row = world.worker.plans[-1].rows
    world.scheduler.abort(request)
    world.assert_empty()
    world.add(2, max_tokens=2, n=2)
    plan = world.step()
    assert sorted(plan.removed_rows) == sorted(row) == sorted([plan.new_rows[0].row, plan.forks[0].row]), (
        "a row is removed and given out again in one plan"
    )
    del world.messages[1]
    world.finish()


def test_an_abort_during_a_step_wins_over_its_result() -> None:
    world = World()
    kept, aborted = world.add(1, max_tokens=2), world.add(2, max_tokens=2)
    plan = world.scheduler.schedule(0.0)
    world.worker.submit(plan)
    world.scheduler.abort(aborted)
    world.scheduler.update(world.worker.collect())
    assert [sequence.request for sequence in world.scheduler.take_outputs().sequences] == [kept]
    world.scheduler.check_invariants()


def test_an_abort_that_comes_after_the_end_is_nothing() -> None:
    world = World()
    request = world.add(1, max_tokens=1)
    world.finish()
    world.scheduler.abort(request)
    world.scheduler.finish(request, FinishReason.ABORTED)
    world.finish()


def test_one_sequence_of_several_can_be_aborted() -> None:
    world = World()
    request = world.add(1, n=3, max_tokens=6)
    world.step(2)
    world.scheduler.abort(request, [1])
    run(world.scheduler, world.worker, world.ledger)
    assert {*world.ledger.ends} == {(1, 0), (1, 2)}
    world.assert_empty()


@pytest.mark.parametrize("steps", [0, 1])
def test_the_lead_is_passed_on_when_the_leader_is_aborted_in_its_prompt(steps: int) -> None:
    world = World(budget=16)
    request = world.add(1, prompt=20, n=3, max_tokens=4)
    run(world.scheduler, world.worker, world.ledger, steps=steps)
    world.scheduler.abort(request, [0])
    world.scheduler.check_invariants()
    run(world.scheduler, world.worker, world.ledger)
    assert {*world.ledger.ends} == {(1, 1), (1, 2)}
    for index in (1, 2):
        assert world.ledger.tokens[1, index] == expected_output(world.messages[1], index)[0]
    world.assert_empty()


def test_the_heir_of_a_leader_does_not_queue_again() -> None:
    world = World(rows=3, budget=16)
    request = world.add(1, prompt=20, n=3, max_tokens=4)
    world.step()
    world.add(2, prompt=3)
    world.scheduler.abort(request, [0])
    plan = world.step()
    assert [(new.parameters.sampling.seed, new.sequence_index) for new in plan.new_rows] == [
        (1, 1),
        (2, 0),  # the sibling finds what the leader had computed, and leaves some of the budget
    ]


def test_an_abort_by_id_is_told_to_the_owner() -> None:
    world = World()
    request = world.add(1, n=2, max_tokens=9)
    world.step(2)
    world.scheduler.finish(request, FinishReason.ABORTED)
    run(world.scheduler, world.worker, world.ledger)
    assert world.ledger.ends == {(1, 0): FinishReason.ABORTED, (1, 1): FinishReason.ABORTED}
    assert len(world.ledger.tokens[1, 0]) == 2
    world.assert_empty()


@pytest.mark.parametrize("status", [Status.WAITING, Status.RUNNING, Status.FORKING])
def test_the_time_limit_ends_a_request_in_every_state(status: Status) -> None:
    world = World(budget=16)
    sequence = sequence_in(world, status)
    world.scheduler.abort(sequence.request)
    del world.messages[1]
    message = add_request(2, prompt=40, n=3, max_tokens=9)
    message.stopping.time_limit.FromMilliseconds(500)
    request = make(message, arrival=10.0)
    world.scheduler.add(request)
    if status is not Status.WAITING:
        world.step(now=10.4)
        assert not world.ledger.ends
    assert request.num_live
    world.scheduler.schedule(10.5)
    world.scheduler.check_invariants()
    assert request.num_live == 0
    finishes = world.scheduler.take_outputs().finishes
    assert [reason for reason, _ in finishes.values()] == [FinishReason.TIME_LIMIT] * 3


def test_a_deadline_that_has_passed_ends_a_request_silently() -> None:
    world = World()
    message = add_request(1, max_tokens=9)
    message.deadline.FromMilliseconds(500)
    world.scheduler.add(make(message, arrival=1.0))
    world.step(now=1.4)
    assert not world.scheduler.schedule(1.6).rows
    assert not world.scheduler.take_outputs()
    world.assert_empty()


def test_ended_requests_with_a_deadline_are_forgotten() -> None:
    world = World()
    for handle in range(1, 400):
        message = add_request(handle)
        message.deadline.FromSeconds(3600)
        request = make(message)
        world.scheduler.add(request)
        world.scheduler.abort(request)
    assert len(world.scheduler.states.timeouts) < 200


def test_a_row_without_logits_ends_its_request_alone() -> None:
    """The worker found nothing to choose from; there is no token that could be delivered."""
    world = World()
    world.add(1, max_tokens=2)
    broken = world.add(2, n=2, max_tokens=3)
    plan = world.scheduler.schedule(0.0)
    tokens = world.worker.execute(plan)
    tokens[1] = NO_TOKEN
    assert world.scheduler.update(Result(plan.step, tokens)) == [broken]
    world.scheduler.check_invariants()
    assert [s.request.handle for s in world.scheduler.take_outputs().sequences] == [1]
    assert [request.handle for request in world.scheduler.requests] == [1]


# Figures and order.


def test_the_figures_are_true_at_each_step() -> None:
    world = World(rows=2, budget=8)
    scheduler = world.scheduler
    for handle in (1, 2, 3):
        world.add(handle, prompt=6, max_tokens=3)
    assert (
        len(scheduler.requests),
        scheduler.num_running_requests,
        scheduler.waiting.num_tokens,
    ) == (
        3,
        0,
        18,
    )
    world.step()
    assert (
        len(scheduler.requests),
        scheduler.num_running_requests,
        scheduler.waiting.num_tokens,
    ) == (
        3,
        2,
        6,
    )
    assert scheduler.pool.num_free == 64 - 4
    world.finish()
    assert (scheduler.num_running_requests, scheduler.waiting.num_tokens) == (0, 0)


def test_the_same_calls_give_the_same_plans() -> None:
    def plans() -> list[Plan]:
        world = World(blocks=10, rows=5, budget=12)
        for handle in range(1, 12):
            world.add(handle, prompt=1 + handle % 11, n=1 + handle % 3, max_tokens=5)
        world.finish()
        return world.worker.plans

    assert plans() == plans()


def test_ended_requests_leave_no_cycle_behind() -> None:
    """With one, their memory would wait for the garbage collector, which pauses the loop."""

    @dataclasses.dataclass(eq=False)
    class Watched(Request):
        __slots__ = ("__weakref__",)

    world = World()
    original = make(add_request(1, n=2, max_tokens=2))
    values = {field.name: getattr(original, field.name) for field in dataclasses.fields(original)}
    request = Watched(**values | {"sequences": [], "forking": {}})
    request.start_sequences(2, {})
    reference = weakref.ref(request)
    gc.disable()
    try:
        world.scheduler.add(request)
        del request
        run(world.scheduler, world.worker, world.ledger)
        assert world.scheduler.schedule(0.0).rows == []
        assert reference() is None
    finally:
        gc.enable()
