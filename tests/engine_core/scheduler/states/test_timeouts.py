"""Requests that end by the clock."""

from engine_core.request import Request
from engine_core.scheduler.states.request_index import Timeouts
from tests.engine_core.fakes import add_request, make


def request(handle: int, *, time_limit: int | None = None, deadline: int | None = None) -> Request:
    message = add_request(handle)
    if time_limit is not None:
        message.stopping.time_limit.FromSeconds(time_limit)
    if deadline is not None:
        message.deadline.FromSeconds(deadline)
    return make(message)


def due(timeouts: Timeouts, now: float) -> list[tuple[int, bool]]:
    """Takes what is due and ends it, as the scheduler does."""
    found = []
    for expired, has_time_limit in timeouts.due(now):
        found.append((expired.handle, has_time_limit))
        expired.num_live = 0
        timeouts.remove(expired)
    return found


def test_due_in_order_of_time_then_of_arrival() -> None:
    timeouts = Timeouts()
    for handle, seconds in ((1, 5), (2, 3), (3, 5), (4, 9)):
        timeouts.add(request(handle, deadline=seconds))
    assert due(timeouts, 2.9) == []
    assert due(timeouts, 5.0) == [(2, False), (1, False), (3, False)]
    assert len(timeouts) == 1


def test_the_earlier_of_time_limit_and_deadline_counts() -> None:
    timeouts = Timeouts()
    timeouts.add(request(1, time_limit=2, deadline=3))
    timeouts.add(request(2, time_limit=3, deadline=2))
    timeouts.add(request(3))
    assert len(timeouts) == 2
    assert due(timeouts, 2.0) == [(1, True), (2, False)]


def test_a_deadline_is_moved() -> None:
    """To later, to earlier and away; a time limit stays."""
    timeouts = Timeouts()
    requests = [request(handle, deadline=5) for handle in (1, 2, 3)]
    requests.append(request(4, deadline=5, time_limit=7))
    for one in requests:
        timeouts.add(one)
    for one, moved in zip(requests, (9, 2, None, None), strict=True):
        timeouts.set_deadline(one, moved)
    assert due(timeouts, 4.0) == [(2, False)] and due(timeouts, 8.0) == [(4, True)]
    assert due(timeouts, 9.0) == [(1, False)] and len(timeouts) == 0
    for second in range(1000):
        timeouts.set_deadline(requests[2], 10.0 + second)
    assert len(timeouts) < 200, "places that are not valid any more are dropped"
    assert due(timeouts, 1008.0) == [] and due(timeouts, 1009.0) == [(3, False)]


def test_ended_requests_are_not_due() -> None:
    timeouts = Timeouts()
    ended = request(1, deadline=1)
    timeouts.add(ended)
    ended.num_live = 0
    timeouts.remove(ended)
    assert due(timeouts, 9.0) == [] and len(timeouts) == 0


def test_what_is_kept_is_bounded_by_what_is_in_flight() -> None:
    """Requests with a deadline of an hour that end at once must not fill the memory for an hour."""
    timeouts = Timeouts()
    for handle in range(1, 5001):
        one = request(handle, deadline=3600)
        timeouts.add(one)
        one.num_live = 0
        timeouts.remove(one)
        assert len(timeouts) < 200
