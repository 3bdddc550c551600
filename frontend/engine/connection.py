"""The connection to one engine core: its identity, its liveness, and this frontend's requests on it.

        Welcome          disconnected, silent, "ENGINE_DEAD", or a Welcome of another epoch
away ───────────> there ───────────────────────────────────────────────────────────────────> away
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from google.protobuf.message import DecodeError

from frontend.engine.journal import JournalEntry
from frontend.engine.socket import EngineSocket, Listener
from frontend.engine.step_outputs import dispatch
from frontend.engine.utility_calls import UtilityCalls
from frontend.errors import EngineRefused, InternalError, ProtocolError, ServiceError
from frontend.telemetry.log_fields import about
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.transport import BadFrame, pack, unpack
from pagewire.logs.redaction import traceback_of
from pagewire.v1 import admin_pb2

log = logging.getLogger(__name__)


class Socket(Protocol):
    """The part of EngineSocket that EngineConnection uses."""

    def open(self) -> None:
        """Starts connecting. Raises StartupError."""

    def send(self, frame: bytes) -> bool:
        """Sends without waiting. False when there is no connection or the core does not read."""

    def close(self) -> None:
        """Disconnects. Idempotent."""


MakeSocket = Callable[[str, bytes, Listener], Socket]
"""Creates a socket from an address, this frontend's identity, and a listener."""


class Owner(Protocol):
    """Owns the journal: EngineClient."""

    hello: engine_pb2.Hello
    """How the frontend presents itself, without an epoch."""

    def on_welcome(self, core: "EngineConnection") -> None:
        """The core has introduced itself: after its start, or on a new connection."""

    def on_heartbeat(self, core: "EngineConnection") -> None:
        """A welcomed core has sent a message."""

    def on_lost(self, core: "EngineConnection") -> None:
        """The core will not answer its requests (in_flight) any more."""

    def on_complete(self, entry: JournalEntry) -> None:
        """No more output will come for the request."""

    def on_invalid_output(self, core: "EngineConnection", entry: JournalEntry) -> None:
        """The core sent inconsistent output for the request, which is aborted there."""

    def on_refusal(self, core: "EngineConnection", entry: JournalEntry, error: ServiceError) -> None:
        """The core has ended the request with an error, or this frontend cannot process its output and has
        aborted it there."""

    def on_cache_changes(self, core: "EngineConnection", changes: engine_pb2.CacheChanges) -> None:
        """The core tells a watch of its prefix cache what has changed."""

    def on_command(self, core: "EngineConnection", command: engine_pb2.FrontendCommand) -> None:
        """The core passes on an operator's command."""


class EngineConnection:
    """One core at one address, across restarts. Methods belong to the event loop's thread."""

    def __init__(self, address: str, identity: bytes, owner: Owner, make_socket: MakeSocket = EngineSocket):
        """identity: this frontend's, the same for all cores."""
        self.address = address
        self.rank = 0
        """Index in the address list."""
        self.in_flight: dict[int, JournalEntry] = {}  # by handle
        self.welcome: engine_pb2.Welcome | None = None
        """The last one received; what it says of the model stays valid while the core is away."""
        self.epoch = 0  # of the Welcome, while connected; 0: the core is away
        self.num_unanswered = 0  # Hellos since the core's last message
        self.leaving = False  # removed from the address list: gets no new requests
        self.differs = ""  # how its model differs from the other cores'
        self.last_load: admin_pb2.RankLoad | None = None
        """As of the core's last heartbeat; None: it is away."""
        self.protocol_errors = 0
        self.utility_calls = UtilityCalls(self._send)
        self._unsent: deque[engine_pb2.FrontendMessage] = deque()  # aborts, while the core does not read
        self._num_of_others = 0  # requests of other frontends, as of the core's last Load
        self._owner = owner
        self._socket = make_socket(address, identity, self)

    def open(self) -> None:
        """Starts connecting; retries until it succeeds. Raises StartupError."""
        self._socket.open()

    def close(self) -> None:
        """Disconnects. Idempotent."""
        self.utility_calls.drop()
        self._socket.close()

    @property
    def serves(self) -> bool:
        """True when requests may be sent to this core."""
        return self.epoch > 0 and not (self.leaving or self.differs)

    @property
    def num_in_flight(self) -> int:
        """Requests of this frontend at this core."""
        return len(self.in_flight)

    @property
    def load(self) -> float:
        """Known requests of all frontends on this core, relative to how many it runs at once."""
        assert self.welcome is not None
        return (len(self.in_flight) + self._num_of_others) / max(self.welcome.max_num_seqs, 1)

    def add(self, request: engine_pb2.AddRequest) -> bool:
        """Sends a request, after all pending aborts: it may reuse the id of an aborted one. Returns False
        when the core accepts none now."""
        self._flush()
        return not self._unsent and self._send(engine_pb2.FrontendMessage(add_request=request))

    def abort(self, handle: int, *indexes: int, detach: bool = False) -> None:
        """Aborts these sequences of a request, or all of them when none is named; see RequestHolder.

        An abort that cannot be sent now is sent later: nothing else would end the request on the core.
        """
        abort = engine_pb2.Abort(handle=handle, indexes=indexes, detach=detach)
        self._unsent.append(engine_pb2.FrontendMessage(abort=abort))
        self._flush()

    def watch_cache(self, watch: int, *, ends: bool = False) -> None:
        """Begins a watch of the core's prefix cache, or ends it."""
        self._send(engine_pb2.FrontendMessage(watch_cache=engine_pb2.WatchCache(watch=watch, ends=ends)))

    def say_hello(self) -> None:
        """Introduces this frontend; later Hellos are heartbeats."""
        hello = engine_pb2.Hello(known_epoch=self.epoch)
        hello.MergeFrom(self._owner.hello)
        self._flush()
        self._send(engine_pb2.FrontendMessage(hello=hello))
        self.num_unanswered += 1

    def reply(self, command: engine_pb2.FrontendCommand, status: admin_pb2.FrontendStatus) -> None:
        """Answers a command."""
        reply = engine_pb2.FrontendReply(asker=command.asker, call_id=command.call_id, status=status)
        self._send(engine_pb2.FrontendMessage(frontend_reply=reply))

    def lose(self) -> None:
        """Gives up the core: it cannot answer any request of this frontend, and must welcome it again."""
        if self.epoch:
            self.epoch = 0
            self._num_of_others, self.last_load = 0, None
            self._unsent.clear()  # a core that welcomes a frontend has forgotten its requests
            self._owner.on_lost(self)
            self.utility_calls.drop()

    # Callbacks of the socket.

    def on_connected(self) -> None:
        """Introduces this frontend without waiting for the next heartbeat."""
        self.say_hello()

    def on_disconnected(self) -> None:
        """Handles a core that died or cannot be reached."""
        self.lose()

    def on_frame(self, frame: bytes) -> None:
        """Handles one message of the core. One that cannot be decoded is counted and dropped."""
        try:
            message = engine_pb2.EngineMessage.FromString(unpack(frame))
            self._handle(message)
        except (BadFrame, DecodeError, ValueError) as error:
            self._count_error(f"a message of the engine cannot be read: {error}")

    def _handle(self, message: engine_pb2.EngineMessage) -> None:
        self.num_unanswered = 0
        kind = message.WhichOneof("message")
        if kind == "step_outputs":
            if message.step_outputs.epoch == self.epoch:
                dispatch(message.step_outputs, self)
        elif kind == "welcome":
            self._accept(message.welcome)
        elif kind == "request_failed":
            if message.request_failed.epoch == self.epoch:
                self._fail(message.request_failed)
        elif kind == "utility_result":
            self.utility_calls.take(message.utility_result)
        elif kind == "cache_changes":
            self._owner.on_cache_changes(self, message.cache_changes)
        elif kind == "frontend_command":
            self._owner.on_command(self, message.frontend_command)
        elif kind == "load":
            self.last_load = load = message.load.load
            total = load.running_requests + load.waiting_requests
            self._num_of_others = max(total - len(self.in_flight), 0)
        self._flush()
        if self.epoch:
            self._owner.on_heartbeat(self)

    def _accept(self, welcome: engine_pb2.Welcome) -> None:
        if welcome.epoch != self.epoch:
            self.lose()  # another process has replaced the core that had the requests
            self.epoch = welcome.epoch
            log.debug("welcomed by engine %s, epoch %d", welcome.instance_id, welcome.epoch)
        self.welcome = welcome
        self._owner.on_welcome(self)

    def _fail(self, failure: engine_pb2.RequestFailed) -> None:
        entry = self.in_flight.get(failure.handle)
        if entry is None:
            return
        retry_after = failure.retry_delay.ToNanoseconds() / 1e9 if failure.HasField("retry_delay") else None
        error = EngineRefused(
            failure.code, failure.reason, failure.message, failure.field, retry_after, failure.quota
        )
        if failure.reason == "ENGINE_DEAD":  # sent for every request by a core that is about to die
            self.lose()
        else:
            self._owner.on_refusal(self, entry, error)

    # Callbacks of frontend.engine.step_outputs.

    def complete(self, entry: JournalEntry) -> None:
        """No more output will come for the request."""
        self._owner.on_complete(entry)

    def invalid(self, entry: JournalEntry, error: ProtocolError) -> None:
        """Aborts a request with inconsistent output, so that another attempt may succeed."""
        with about(entry.request):
            self._count_error(str(error))
        self.abort(entry.handle)
        self._owner.on_invalid_output(self, entry)

    def give_up(self, entry: JournalEntry, error: BaseException) -> None:
        """Fails a request whose output this frontend cannot process."""
        with about(entry.request):
            log.error("the output of a request cannot be processed: %s", traceback_of(error))
        self.abort(entry.handle)
        self._owner.on_refusal(self, entry, InternalError())

    def _flush(self) -> None:
        while self._unsent and self._send(self._unsent[0]):
            self._unsent.popleft()

    def _send(self, message: engine_pb2.FrontendMessage) -> bool:
        return self._socket.send(pack(message))

    def _count_error(self, text: str) -> None:
        self.protocol_errors += 1
        if self.protocol_errors.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
            log.error("%s (%d protocol errors so far)", text, self.protocol_errors)
