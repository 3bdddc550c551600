"""Requests in flight by id: unique, in groups, and ended from outside."""

from types import SimpleNamespace

import pytest

from frontend.auth.caller import ANONYMOUS, Caller
from frontend.errors import ContinuedElsewhere, Draining, RequestExists
from frontend.streams.request_registry import RequestRegistry
from frontend.telemetry.timings import RequestTimings
from pagewire.internal.v1 import engine_pb2


class Engine:
    def __init__(self) -> None:
        self.released: list[int] = []
        self.detached: list[int] = []
        self.waiting: set[int] = set()

    def release(self, ticket: int, *, detach: bool = False) -> None:
        (self.detached if detach else self.released).append(ticket)

    def waits(self, ticket: int) -> bool:
        return ticket in self.waiting


class Stream(SimpleNamespace):
    ended = False

    def abort(self) -> None:
        self.ended = True

    def fail(self, error) -> None:
        self.error = error


def sent(entry, ticket: int) -> Stream:
    entry.stream, entry.ticket = Stream(), ticket
    return entry.stream


def test_an_id_is_reserved_once_and_freed():
    registry = RequestRegistry(Engine())
    with registry.reserve("a"), pytest.raises(RequestExists), registry.reserve("a"):
        pass
    with registry.reserve("a"):
        assert len(registry) == registry.num_requests == 1
    assert not registry


def test_a_later_call_of_the_same_content_has_the_id():
    """It gives it back if it ends first: the core may not have heard of it."""
    registry = RequestRegistry(Engine())  # type: ignore[arg-type]
    with registry.reserve("a", b"same") as first:
        sent(first, 1)
        with pytest.raises(RequestExists), registry.reserve("a", b"other"):
            pass
        with pytest.raises(RequestExists), registry.reserve("a"):
            pass
        with registry.reserve("a", b"same") as second:
            assert registry.find("a") is second and len(registry) == registry.num_requests == 1
            assert first.failure is None, "the core tells it"
            with registry.reserve("a", b"same") as third:
                assert isinstance(second.failure, ContinuedElsewhere), "the core does not know it"
                assert registry.find("a") is third
            assert registry.find("a") is second
        assert registry.find("a") is first
    assert len(registry) == 0


def test_calls_that_have_ended_are_not_kept():
    registry = RequestRegistry(Engine())  # type: ignore[arg-type]
    calls = [registry.reserve("a", b"same") for _ in range(5)]
    entries = []
    for number, call in enumerate(calls):
        entries.append(call.__enter__())
        if number:
            calls[number - 1].__exit__(None, None, None)
    assert registry.find("a") is entries[-1] and len(registry) == 1
    chain = entries[-1]
    while chain.former is not None:
        chain = chain.former
    assert chain in entries[-2:], "only the last one is known"
    calls[-1].__exit__(None, None, None)
    assert len(registry) == 0


def test_a_group_is_one_request_with_one_age():
    registry = RequestRegistry(Engine())
    with registry.group("g", Caller("alice"), 3) as members:
        assert members == ("g#0", "g#1", "g#2")
        assert registry.members("alice/g") == ("alice/g#0", "alice/g#1", "alice/g#2")
        with registry.reserve("alice/g#0"):
            assert (len(registry), registry.num_requests) == (2, 1)
        message = engine_pb2.AddRequest(request_id="alice/g#1")
        registry.put_age(message, RequestTimings())
        assert message.group == "alice/g" and message.age_us >= 0
    assert registry.members("alice/g") == ("alice/g",)
    with registry.group("g", ANONYMOUS, 1):
        message = engine_pb2.AddRequest(request_id="other")
        registry.put_age(message, RequestTimings())
        assert not message.group


def test_abort_reaches_requests_in_every_state():
    engine = Engine()
    registry = RequestRegistry(engine)
    with (
        registry.reserve("new") as new,
        registry.reserve("sent") as running,
        registry.reserve("over") as over,
    ):
        stream, ended = sent(running, 7), sent(over, 8)
        ended.ended = True
        registry.abort(["new", "sent", "over", "unknown"])
        assert new.aborted and stream.ended and engine.released == [7]


def test_only_unsent_requests_are_aborted_without_a_core():
    engine = Engine()
    registry = RequestRegistry(engine)
    with registry.reserve("new"), registry.reserve("lost") as lost, registry.reserve("sent") as running:
        waiting, at_core = sent(lost, 1), sent(running, 2)
        engine.waiting.add(1)
        assert registry.abort_unsent(["new", "lost", "sent", "unknown"]) == {"new", "lost"}
        assert waiting.ended and not at_core.ended


def test_an_abort_finds_calls_that_have_not_reserved_their_id():
    """All that have the id then, and none that comes later."""
    registry = RequestRegistry(Engine())
    with registry.arriving("x") as one, registry.arriving("x") as other:
        assert registry.abort_early("x") and not registry.abort_early("y")
        with registry.arriving("x") as later:
            assert one.aborted and other.aborted and not later.aborted
    assert not registry.abort_early("x")
    with registry.arriving("x") as one:
        registry.abort(["x"])
        assert one.aborted


def test_an_abort_finds_members_of_a_group_that_have_not_begun():
    registry = RequestRegistry(Engine())
    with registry.group("g", ANONYMOUS, 3), registry.reserve("g#0") as first:
        stream = sent(first, 1)
        assert all(map(registry.abort_early, registry.members("g"))) and not stream.ended
        with registry.reserve("g#1") as second:
            assert second.aborted
    with registry.group("g", ANONYMOUS, 1, aborted=True), registry.reserve("g#0") as first:
        assert first.aborted


def test_a_group_may_have_groups():
    """All of it is one request with one age, and an Abort finds what has not begun."""
    registry = RequestRegistry(Engine())
    with registry.group("g", ANONYMOUS, 2), registry.group("g#1", ANONYMOUS, 2):
        assert registry.members("g") == ("g#0", "g#1#0", "g#1#1")
        with registry.reserve("g#1#0"):
            assert (len(registry), registry.num_requests) == (3, 1)
        message = engine_pb2.AddRequest(request_id="g#1#0")
        registry.put_age(message, RequestTimings())
        assert message.group == "g"
        assert all(map(registry.abort_early, registry.members("g")))
        with registry.reserve("g#1#1") as member:
            assert member.aborted
        with registry.group("g#0", ANONYMOUS, 1), registry.reserve("g#0#0") as member:
            assert member.aborted
    assert registry.members("g") == ("g",) and not registry.abort_early("g#1#0")


def test_all_are_ended_with_an_error():
    engine, error = Engine(), Draining()
    registry = RequestRegistry(engine)
    with registry.reserve("new") as new, registry.reserve("sent") as running:
        stream = sent(running, 3)
        registry.end_all(error)
        assert new.failure is error and stream.error is error and engine.detached == [3]
