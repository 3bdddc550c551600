"""The frontends' socket: frames become events, messages become frames, nothing is fatal."""

import pickle
import select
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine_core.io import frontend_sockets as sockets
from engine_core.io.frontend_sockets import FrontendSockets
from engine_core.io.inbox import Event, FrontendGone, Inbox, Received, SocketsFailed
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import EngineMessage, FrontendMessage, Hello, RequestFailed
from pagewire.ipc import transport
from tests.engine_core.processes import PATIENCE_S, FakeFrontend

Context = zmq.Context[zmq.Socket[bytes]]


class Hub:
    """The sockets and their input queue."""

    def __init__(self, context: Context, folder: Path, inbox: Inbox | None = None) -> None:
        self.address = transport.frontends_address(folder)
        self.inbox = Inbox() if inbox is None else inbox
        self.events: deque[Event] = deque()
        self.sockets = FrontendSockets(context, self.address, self.inbox)
        self.sockets.start()

    def close(self) -> None:
        self.sockets.close()
        self.inbox.close()

    def event(self) -> Event:
        """The next one."""
        while not self.events:
            assert select.select([self.inbox], [], [], PATIENCE_S)[0], "nothing came"
            self.events.extend(self.inbox.take())
        return self.events.popleft()

    def received(self) -> Received:
        event = self.event()
        assert isinstance(event, Received)
        return event


@pytest.fixture
def hub(context: Context, folder: Path) -> Iterator[Hub]:
    made = Hub(context, folder)
    yield made
    made.close()


def note(handle: int, size: int = 0) -> EngineMessage:
    return EngineMessage(request_failed=RequestFailed(handle=handle, message="x" * size))


def test_both_directions(hub: Hub, context: Context) -> None:
    with FakeFrontend(context, hub.address) as a, FakeFrontend(context, hub.address) as b:
        for frontend in (a, b):
            frontend.send(hello=Hello(frontend_id=frontend.identity.hex()))
        events = [hub.received() for _ in range(2)]
        for event in events:
            assert event.message.hello.frontend_id == event.frontend.hex()
        for handle in range(5):
            hub.sockets.send(a.identity, note(handle))
        hub.sockets.send(b.identity, note(99))
        assert [a.receive().request_failed.handle for _ in range(5)] == [0, 1, 2, 3, 4]
        assert b.receive().request_failed.handle == 99


BAD_FRAMES = {
    "empty": [b""],
    "another version": [b"\2" + FrontendMessage(hello=Hello()).SerializeToString()],
    "garbage": [b"\1" + b"\xff" * 40],
    "text": [b"GET / HTTP/1.1\r\n\r\n"],
    "a pickle": [b"\1" + pickle.dumps({"a": 1})],
    "no message": [b"\1"],
    "unknown field": [b"\1\xfa\x01\x02hi"],
    "two frames": [b"\1", b"\1"],
    "truncated": [transport.pack(FrontendMessage(hello=Hello(frontend_id="x" * 50)))[:-9]],
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_an_invalid_frame_is_counted_and_dropped(hub: Hub, context: Context, case: str) -> None:
    with FakeFrontend(context, hub.address) as frontend:
        frontend.socket.send_multipart(BAD_FRAMES[case])
        frontend.send(hello=Hello(frontend_id="still here"))
        assert hub.received().message.hello.frontend_id == "still here"
        assert hub.sockets.num_bad_frames == 1
        hub.sockets.send(frontend.identity, note(1))
        assert frontend.receive().request_failed.handle == 1


def test_a_frontend_that_vanishes_becomes_an_event(hub: Hub, context: Context) -> None:
    with FakeFrontend(context, hub.address) as frontend:
        frontend.send(hello=Hello())
        hub.received()
    gone: Event | None = None
    while gone is None:  # until the disconnection is known, messages vanish
        hub.sockets.send(frontend.identity, note(1))
        if hub.inbox:
            gone = hub.event()
    assert gone == FrontendGone(frontend.identity)


def test_a_slow_frontend_loses_nothing(hub: Hub, context: Context) -> None:
    """What exceeds ZeroMQ's queues is kept in order, and delays no other frontend."""
    count = 2 * transport.HIGH_WATER_MARK + 5_000
    with FakeFrontend(context, hub.address) as slow, FakeFrontend(context, hub.address) as quick:
        for frontend in (slow, quick):
            frontend.send(hello=Hello())
            hub.received()
        for handle in range(count):
            hub.sockets.send(slow.identity, note(handle))
        hub.sockets.send(quick.identity, note(1))
        assert quick.receive().request_failed.handle == 1
        for handle in range(count):
            assert slow.receive().request_failed.handle == handle
        assert not hub.inbox


def test_a_frontend_that_never_reads_counts_as_gone(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "MAX_BACKLOG_BYTES", 1 << 20)
    with FakeFrontend(context, hub.address) as stuck:
        stuck.send(hello=Hello())
        hub.received()
        for handle in range(2 * transport.HIGH_WATER_MARK + 5_000):
            hub.sockets.send(stuck.identity, note(handle, size=300))
        assert hub.event() == FrontendGone(stuck.identity)
        hub.sockets.send(stuck.identity, note(1))  # as the loop does, of each request that it ends
        stuck.send(hello=Hello())
        while not isinstance(event := hub.event(), Received):
            assert event == FrontendGone(stuck.identity)
        assert event.frontend == stuck.identity, "what it says is heard all the same"
        kept = sum(backlog.bytes for backlog in list(hub.sockets._backlogs.values()))
        assert kept < 1 << 20, "nothing is kept that is over"


def test_a_full_inbox_holds_back_senders(context: Context, folder: Path) -> None:
    """Messages stay with the senders until the loop takes events again."""
    hub = Hub(context, folder, Inbox(max_events=10))
    with FakeFrontend(context, hub.address) as busy, FakeFrontend(context, hub.address) as other:
        for number in range(200):
            busy.send(hello=Hello(known_epoch=number))
        other.send(hello=Hello(frontend_id="other"))
        seen: list[Hello] = []
        while len(seen) < 201:
            assert select.select([hub.inbox], [], [], PATIENCE_S)[0], "nothing came"
            taken = hub.inbox.take()
            assert len(taken) <= 10
            seen += [event.message.hello for event in taken if isinstance(event, Received)]
        numbers = [hello.known_epoch for hello in seen if not hello.frontend_id]
        assert numbers == [*range(200)]
        hub.sockets.send(busy.identity, note(5))
        assert busy.receive().request_failed.handle == 5, "the other direction is not held back"
    hub.close()


def test_an_inbox_counts_bytes(context: Context, folder: Path) -> None:
    inbox = Inbox(max_bytes=1000)
    events = [Received(b"a", FrontendMessage(hello=Hello()), 0.0, size) for size in (600, 500)]
    inbox.put(events[0])
    assert not inbox.is_full
    inbox.put(events[1])
    assert inbox.is_full
    assert inbox.take_if(lambda event: event is events[1]) == [events[1]]
    assert not inbox.is_full and select.select([inbox.room], [], [], PATIENCE_S)[0]
    assert inbox.take() == [events[0]]
    inbox.close()


def test_closing_sends_what_is_left(context: Context, folder: Path) -> None:
    hub = Hub(context, folder)
    with FakeFrontend(context, hub.address) as frontend:
        frontend.send(hello=Hello())
        hub.received()
        for handle in range(1000):
            hub.sockets.send(frontend.identity, note(handle))
        hub.close()
        assert [frontend.receive().request_failed.handle for _ in range(1000)] == [*range(1000)]


def test_an_address_in_use_is_refused(hub: Hub, context: Context) -> None:
    with pytest.raises(StartupError, match="already serves"):
        FrontendSockets(context, hub.address, hub.inbox)


def test_a_bug_in_the_thread_reaches_the_loop(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(frames: list[bytes]) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(hub.sockets, "_parse", broken)
    with FakeFrontend(context, hub.address) as frontend:
        frontend.send(hello=Hello())
        event = hub.event()
    assert isinstance(event, SocketsFailed) and isinstance(event.error, KeyError)
