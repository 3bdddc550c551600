"""The line to one engine core: who it is, whether it speaks, what it has of our requests.

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
from frontend.engine.utility_calls import Questions
from frontend.errors import EngineRefused, InternalError, ProtocolError, ServiceError
from pagewire import __version__
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.transport import BadFrame, pack, unpack
from pagewire.log_redaction import traceback_of

log = logging.getLogger(__name__)


class Socket(Protocol):
    """What an EngineSocket does for an EngineConnection."""

    def open(self) -> None:
        """Starts connecting. Raises StartupError."""

    def send(self, frame: bytes) -> bool:
        """Sends without waiting. False when there is no connection or the core does not read."""

    def close(self) -> None:
        """Disconnects. Idempotent."""


MakeSocket = Callable[[str, bytes, Listener], Socket]
"""From the address, our identity, and who hears what comes in."""


class Owner(Protocol):
    """Who has the journal: EngineClient."""

    def on_welcome(self, core: "EngineConnection") -> None:
        """It has introduced itself: a new start, or a new connection."""

    def on_word(self, core: "EngineConnection") -> None:
        """It is welcomed, and has said something."""

    def on_lost(self, core: "EngineConnection") -> None:
        """What it has of our requests, in_flight, will not be answered any more."""

    def on_complete(self, entry: JournalEntry) -> None:
        """Nothing more will come for it."""

    def on_doubt(self, core: "EngineConnection", entry: JournalEntry) -> None:
        """What the core said of it made no sense; it is aborted there."""

    def on_refusal(self, core: "EngineConnection", entry: JournalEntry, error: ServiceError) -> None:
        """The core has ended it by an error; or it is aborted there, as we cannot go on with it."""


class EngineConnection:
    """One core at one address, life after life. All methods belong to the event loop's thread."""

    def __init__(self, address: str, identity: bytes, owner: Owner, make_socket: MakeSocket = EngineSocket):
        """identity: of this frontend; one for all cores."""
        self.address = address
        self.rank = 0
        """Its place among the addresses."""
        self.in_flight: dict[int, JournalEntry] = {}  # by handle
        self.welcome: engine_pb2.Welcome | None = None
        """The last one; it goes on being true of the model when the core is away."""
        self.epoch = 0  # of the Welcome while the core is there; 0: it is away
        self.num_unanswered = 0  # Hellos since the core's last word
        self.leaving = False  # its address is gone from the list: nothing new is sent to it
        self.differs = ""  # in what its model is another one than everybody's
        self.protocol_errors = 0
        self.questions = Questions(self._send)
        self._unsent: deque[engine_pb2.FrontendMessage] = deque()  # aborts, while the core does not read
        self._num_of_others = 0  # requests of other frontends, as of the core's last Load
        self._identity = identity
        self._owner = owner
        self._socket = make_socket(address, identity, self)

    def open(self) -> None:
        """Starts connecting, for as long as it takes. Raises StartupError."""
        self._socket.open()

    def close(self) -> None:
        """Disconnects. Idempotent."""
        self.questions.drop()
        self._socket.close()

    @property
    def serves(self) -> bool:
        """Whether requests may be sent to it."""
        return self.epoch > 0 and not (self.leaving or self.differs)

    @property
    def load(self) -> float:
        """Requests that it has, of all frontends as far as this one knows, over what runs at once."""
        assert self.welcome is not None
        return (len(self.in_flight) + self._num_of_others) / max(self.welcome.max_num_seqs, 1)

    def add(self, request: engine_pb2.AddRequest) -> bool:
        """Sends a request, behind all aborts: it may have the id of one that is aborted. False when the core
        takes none now."""
        self._flush()
        return not self._unsent and self._send(engine_pb2.FrontendMessage(add_request=request))

    def abort(self, handle: int, *indexes: int) -> None:
        """The core need not go on with these sequences; none named: with none of them.

        One that cannot be sent now is sent later: nobody else would end what nobody waits for.
        """
        self._unsent.append(
            engine_pb2.FrontendMessage(abort=engine_pb2.Abort(handle=handle, indexes=indexes))
        )
        self._flush()

    def say_hello(self) -> None:
        """Introduces this frontend; from then on it is a heartbeat."""
        frontend_id = self._identity.hex()
        hello = engine_pb2.Hello(frontend_id=frontend_id, version=__version__, known_epoch=self.epoch)
        self._flush()
        self._send(engine_pb2.FrontendMessage(hello=hello))
        self.num_unanswered += 1

    def lose(self) -> None:
        """Nothing that the core has of us can be answered any more. It must welcome us again."""
        if self.epoch:
            self.epoch = 0
            self._num_of_others = 0
            self._unsent.clear()  # it forgets what we had asked for when it welcomes us
            self._owner.on_lost(self)
            self.questions.drop()

    # What the socket tells.

    def on_connected(self) -> None:
        """Introduces itself without waiting for the next beat."""
        self.say_hello()

    def on_disconnected(self) -> None:
        """The core is dead, or cannot be reached."""
        self.lose()

    def on_frame(self, frame: bytes) -> None:
        """One message of the core. One that cannot be read is counted and dropped."""
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
            self.questions.take(message.utility_result)
        elif kind == "load":
            load = message.load.load
            total = load.running_requests + load.waiting_requests
            self._num_of_others = max(total - len(self.in_flight), 0)
        self._flush()
        if self.epoch:
            self._owner.on_word(self)

    def _accept(self, welcome: engine_pb2.Welcome) -> None:
        if welcome.epoch != self.epoch:
            self.lose()  # another core has taken the place of the one that had our requests
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
        if failure.reason == "ENGINE_DEAD":  # its last words, which it says of every request
            self.lose()
        else:
            self._owner.on_refusal(self, entry, error)

    # What a step's outputs lead to: see frontend.engine.step_outputs.

    def complete(self, entry: JournalEntry) -> None:
        """Nothing more will come for it."""
        self._owner.on_complete(entry)

    def doubt(self, entry: JournalEntry, error: ProtocolError) -> None:
        """What the core says of a request makes no sense: another attempt may."""
        self._count_error(str(error))
        self.abort(entry.handle)
        self._owner.on_doubt(self, entry)

    def give_up(self, entry: JournalEntry, error: BaseException) -> None:
        """What came for it cannot be taken."""
        log.error("the output of a request cannot be taken: %s", traceback_of(error))
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
