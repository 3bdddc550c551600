"""One step ahead: a plan is made and sent before the result of the one before it has come."""

import pytest

from engine_core.errors import Code
from engine_core.io.process_control import Stopped
from engine_core.request import NO_TOKEN, FinishReason, Sequence, Status
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from pagewire.internal.v1.engine_pb2 import Abort
from tests.engine_core.fakes import add_request, expected_output
from tests.engine_core.house import House
from tests.engine_core.world import World, columns


class Scribe(House):
    """A house that writes down what the core asks of its worker, and may answer for it."""

    def __init__(self, *, ahead: bool = True, **options: int) -> None:
        super().__init__(ahead=ahead, **options)
        self.calls: list[str] = []
        self.answers: dict[int, list[int]] = {}  # step -> tokens, instead of the worker's
        self._submit, self._collect = self.worker.submit, self.worker.collect
        self.worker.submit, self.worker.collect = self.submit, self.collect  # type: ignore[method-assign]

    def submit(self, plan: Plan) -> None:
        self.calls.append(f"submit {plan.step}")
        self._submit(plan)

    def collect(self) -> Result:
        result = self._collect()
        self.calls.append(f"collect {result.step}")
        return Result(result.step, self.answers.get(result.step, result.token_ids))

    def run_to_the_end(self) -> None:
        """Everything runs out, and then the core waits for events: with nothing left under way."""
        self.run()
        self.worker.stopped = True
        with pytest.raises(Stopped):
            for _ in range(3):
                self.core.step()
        assert not self.scheduler.in_flight
        assert self.scheduler.pool.num_free == self.scheduler.pool.num_blocks

    def assert_right(self, *handles: int, **options: int) -> None:
        ledger = self.outputs_of(b"a")
        for handle in handles:
            assert (ledger.tokens[handle, 0], ledger.ends[handle, 0]) == expected_output(
                add_request(handle, **options), 0
            )


def test_the_next_step_is_sent_before_a_result_is_waited_for() -> None:
    house = Scribe()
    house.put(add_request(1, max_tokens=4))
    house.run_to_the_end()
    assert house.calls == [
        "submit 1",
        "submit 2",
        "collect 1",
        "submit 3",
        "collect 2",
        "submit 4",
        "collect 3",
        "collect 4",
    ]
    house.assert_right(1, max_tokens=4)


def test_in_step_with_the_worker_it_is_the_same_without() -> None:
    house = Scribe(ahead=False)
    house.put(add_request(1, max_tokens=2))
    house.run_to_the_end()
    assert house.calls == ["submit 1", "collect 1", "submit 2", "collect 2"]


def test_a_sequence_is_not_computed_beyond_its_limit() -> None:
    house = Scribe()
    house.put(add_request(1, max_tokens=3))
    house.put(add_request(2, max_tokens=5))
    house.run_to_the_end()
    assert [len(plan.rows) for plan in house.worker.plans] == [2, 2, 2, 1, 1]
    house.assert_right(1, max_tokens=3)
    house.assert_right(2, max_tokens=5)


def test_a_stopped_sequence_costs_one_row_of_one_step() -> None:
    """The step after its stop token is under way already; what that samples is passed over."""
    house = Scribe()
    stop = expected_output(add_request(1, max_tokens=2), 0)[0][-1]
    house.put(add_request(1, max_tokens=9, stop_token_ids=[stop]))
    house.put(add_request(2, max_tokens=5))
    house.run_to_the_end()
    assert [len(plan.rows) for plan in house.worker.plans] == [2, 2, 2, 1, 1]
    assert house.worker.plans[3].removed_rows
    ledger = house.outputs_of(b"a")
    assert ledger.ends[1, 0] is FinishReason.STOP and len(ledger.tokens[1, 0]) == 2
    house.assert_right(2, max_tokens=5)


def test_an_end_frees_its_row_for_the_very_next_plan() -> None:
    house = Scribe(rows=1)
    for handle in (1, 2):
        house.put(add_request(handle, max_tokens=2))
    house.run_to_the_end()
    first, second = (plan.step for plan in house.worker.plans if plan.new_rows)
    assert house.worker.plans[second - 1].removed_rows == [0]
    assert house.calls.index(f"submit {second}") == house.calls.index("collect 2") + 1
    assert (first, second) == (1, 3)
    house.assert_right(1, 2, max_tokens=2)


def test_an_abort_with_two_plans_under_way() -> None:
    house = Scribe()
    house.put(add_request(1, max_tokens=30))
    house.put(add_request(2, max_tokens=6))
    house.step(3)
    assert len(house.scheduler.in_flight) == 1
    house.put(Abort(handle=1))
    before = len(house.outputs_of(b"a").tokens[1, 0])
    house.run_to_the_end()
    assert len(house.outputs_of(b"a").tokens[1, 0]) == before
    house.assert_right(2, max_tokens=6)


def test_output_without_probabilities_fails_its_request_once() -> None:
    house = Scribe()
    house.put(add_request(1, max_tokens=9))
    house.put(add_request(2, max_tokens=5))
    house.answers[2] = [NO_TOKEN, 7]
    house.answers[3] = [NO_TOKEN, 8]
    house.run_to_the_end()
    (failure,) = house.failures()
    assert (failure.handle, failure.code, failure.reason) == (1, Code.INTERNAL, "NO_LOGITS")
    assert house.outputs_of(b"a").ends == {(2, 0): FinishReason.MAX_TOKENS}


def test_what_has_no_logits_is_forgotten_though_it_was_preempted_before_that_was_known() -> None:
    world, victim = preempted_under_way()
    assert world.scheduler.prefix_cache.find(victim)
    oldest = world.scheduler.in_flight[0]
    tokens = [NO_TOKEN if sequence is victim else 5 for sequence in oldest.sampling]
    assert world.scheduler.update(Result(oldest.plan.step, tokens)) == [victim.request]
    world.scheduler.check_invariants()
    assert not any(map(world.scheduler.pool.find, victim.hashes[1:]))


def test_a_worker_that_dies_with_two_plans_under_way() -> None:
    house = Scribe()
    house.put(add_request(1, max_tokens=9))
    house.step()

    def collect() -> Result:
        raise OSError("gone")

    house.worker.collect = collect  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        house.step()
    assert len(house.scheduler.in_flight) == 2
    house.put(add_request(2))
    house.core.fail_all("ENGINE_DEAD", "the engine has died")
    assert {failure.handle for failure in house.failures()} == {1, 2}


def preempted_under_way() -> tuple[World, Sequence]:
    """The pool is too small for two; the one that is preempted has a token under way."""
    world = World(blocks=6, block_size=2, ahead=True)
    world.add(1, prompt=4, max_tokens=8)
    victim = world.add(2, prompt=3, max_tokens=7).sequences[0]
    world.worker.submit(world.scheduler.schedule(0.0))
    while True:
        plan = world.scheduler.schedule(0.0)
        world.worker.submit(plan)
        world.scheduler.check_invariants()
        if world.scheduler.num_preemptions:
            assert not plan.new_rows
            return world, victim
        world.scheduler.update(world.worker.collect())


def test_a_token_of_a_sequence_that_was_preempted_meanwhile_is_kept() -> None:
    """It is delivered, and computed with the others when the sequence is admitted again."""
    world, victim = preempted_under_way()
    known = victim.num_known_tokens
    assert victim.num_tokens == known + 1
    world.scheduler.update(world.worker.collect())
    assert victim.status is Status.WAITING and victim.num_known_tokens == known + 1
    world.finish()


def test_a_preempted_sequence_may_end_with_the_token_that_was_under_way() -> None:
    world = World(blocks=4, block_size=2, ahead=True)
    world.add(1, prompt=3, max_tokens=5)
    world.add(2, prompt=1, max_tokens=3)
    world.finish()
    assert world.scheduler.num_preemptions


@pytest.mark.parametrize("ahead", [False, True])
def test_siblings_fork_from_a_prompt_that_is_under_way(ahead: bool) -> None:
    world = World(ahead=ahead, budget=4)
    world.add(1, prompt=6, n=3, max_tokens=5)
    world.add(2, prompt=5, max_tokens=5)
    world.finish()
    assert columns(world.worker.plans[0]) == [(0, 4)]


def test_blocks_are_known_only_as_far_as_their_tokens_are() -> None:
    world = World(block_size=1)
    sequence = world.add(1, prompt=3, max_tokens=9).sequences[0]
    for _ in range(2):
        world.worker.submit(world.scheduler.schedule(0.0))
        world.scheduler.check_invariants()
    assert (sequence.num_computed_tokens, sequence.num_known_tokens) == (4, 3)
    world.scheduler.abort(sequence.request)
    world.scheduler.check_invariants()
    assert world.scheduler.pool.num_cached == 3
