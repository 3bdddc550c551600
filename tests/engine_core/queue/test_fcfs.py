"""First come, first served."""

import pytest

from engine_core.errors import InvariantError
from engine_core.queue.base import FAIR, FIRST_COME, Ahead, FirstComeQueue, Share, check_counts
from engine_core.queue.fair import FairQueue
from engine_core.request import Sequence
from tests.engine_core.fakes import add_request, make
from tests.engine_core.world import World


def sequence(handle: int, prompt: int = 5, **options: object) -> Sequence:
    return make(add_request(handle, prompt, **options)).sequences[0]  # type: ignore[arg-type]


def test_the_order_is_that_of_arrival_whatever_the_class_and_the_tenant() -> None:
    queue = FirstComeQueue()
    first, second = sequence(1, priority=5, tenant="a"), sequence(2, priority=-5, tenant="b")
    queue.add(first, 0)
    queue.add(second, 4)
    assert [*queue] == [first, second] and queue.head() is first
    assert (len(queue), queue.num_tokens) == (2, 5 + 1)
    queue.check_invariants(0)


def test_a_preempted_sequence_is_ahead_of_all_others() -> None:
    queue = FirstComeQueue()
    first, second = sequence(1), sequence(2)
    queue.add(first, 0)
    queue.add_front(second, 0)
    assert queue.head() is second
    queue.remove(second)
    queue.remove(first)
    assert queue.head() is None and queue.num_tokens == 0


def test_all_that_waits_is_ahead_of_a_request() -> None:
    queue = FirstComeQueue()
    queue.add(sequence(1, 7), 0)
    queue.add(make(add_request(3, 5, n=4)).sequences[0], 0)
    assert queue.ahead(sequence(2).request, 10.0) == Ahead(1 + 4, 7 + 5)
    queue.remove(queue.head())
    assert queue.ahead(sequence(2).request, 10.0) == Ahead(4, 5)
    assert queue.share("a") == Share(0.0, 0, 0)


def test_what_is_before_a_sequence() -> None:
    queue = FirstComeQueue()
    first, second, third = sequence(1, 7), make(add_request(2, 5, n=4)).sequences[0], sequence(3, 2)
    for each in (first, second):
        queue.add(each, 0)
    queue.add_front(third, 0)
    assert queue.ahead(third.request, 10.0, third) == Ahead(0, 0)
    assert queue.ahead(first.request, 10.0, first) == Ahead(1, 2)
    assert queue.ahead(second.request, 10.0, second) == Ahead(2, 9)


def test_wrong_counts_are_found() -> None:
    check_counts({sequence(1): 5}, 5)
    with pytest.raises(InvariantError, match="6 tokens wait, but 5 are counted"):
        check_counts({sequence(1): 5}, 6)
    with pytest.raises(InvariantError, match="more tokens than it has"):
        check_counts({sequence(1): 9}, 9)


def test_policies_by_name() -> None:
    assert isinstance(World(policy=FIRST_COME).scheduler.waiting, FirstComeQueue)
    assert isinstance(World(policy=FAIR).scheduler.waiting, FairQueue)
