"""Events on their way from other threads to the step loop."""

import contextlib
import select
from collections.abc import Iterator

import pytest

from engine_core.io.inbox import FrontendGone, HealthProbe, Inbox, Received
from pagewire.internal.v1.engine_pb2 import FrontendMessage, Hello


def message(size: int = 1, at: float = 0.0) -> Received:
    return Received(b"a", FrontendMessage(hello=Hello()), at, size)


def is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with contextlib.closing(Inbox(max_events=3, max_bytes=100)) as made:
        yield made


def test_events_come_out_in_order(inbox: Inbox) -> None:
    events = [message(at=1.0), FrontendGone(b"b"), HealthProbe(lambda answer: None)]
    for event in events:
        inbox.put(event)
    assert inbox and inbox.take() == events
    assert not inbox and inbox.take() == []


def test_the_descriptor_wakes_the_loop_until_events_are_taken(inbox: Inbox) -> None:
    assert not is_readable(inbox.fileno())
    inbox.put(message())
    assert is_readable(inbox.fileno())
    inbox.acknowledge()
    assert not is_readable(inbox.fileno()) and inbox
    inbox.put(message())
    assert is_readable(inbox.fileno()) and len(inbox.take()) == 2
    assert not is_readable(inbox.fileno())


@pytest.mark.parametrize(("count", "size"), [(3, 1), (1, 100)])
def test_it_is_full_by_events_or_by_bytes(inbox: Inbox, count: int, size: int) -> None:
    for _ in range(count):
        assert not inbox.is_full
        inbox.put(message(size))
    assert inbox.is_full
    inbox.put(message())  # nothing is refused: the reader of the socket is asked to wait
    assert len(inbox.take()) == count + 1 and not inbox.is_full


def test_a_reader_that_found_it_full_is_told_of_room(inbox: Inbox) -> None:
    inbox.put(message(100))
    inbox.take()
    assert not is_readable(inbox.room), "no reader has found it full"
    inbox.put(message(100))
    assert inbox.is_full
    inbox.take()
    assert is_readable(inbox.room)
    inbox.acknowledge_room()
    assert not is_readable(inbox.room)


def test_some_events_can_be_taken_before_others(inbox: Inbox) -> None:
    events = [FrontendGone(name) for name in (b"a", b"b", b"c")]
    for event in events:
        inbox.put(event)
    assert inbox.take_if(lambda event: event == events[1]) == [events[1]]
    assert inbox.take() == [events[0], events[2]]
