"""Requests in flight by id: unique, in groups, and ended from outside."""

from types import SimpleNamespace

import pytest

from frontend.auth.caller import ANONYMOUS, Caller
from frontend.errors import Draining, RequestExists
from frontend.streams.request_registry import RequestRegistry
from frontend.telemetry.timings import RequestTimings
from pagewire.internal.v1 import engine_pb2


class Engine:
    def __init__(self) -> None:
        self.released: list[int] = []
        self.waiting: set[int] = set()

    def release(self, ticket: int) -> None:
        self.released.append(ticket)

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


def test_all_are_ended_with_an_error():
    engine, error = Engine(), Draining()
    registry = RequestRegistry(engine)
    with registry.reserve("new") as new, registry.reserve("sent") as running:
        stream = sent(running, 3)
        registry.end_all(error)
        assert new.failure is error and stream.error is error and engine.released == [3]
