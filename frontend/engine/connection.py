"""The connection to one engine core: its messages, and whether it is there.

        Welcome          disconnected, silent, "ENGINE_DEAD", or a Welcome of another epoch
away ───────────> there ───────────────────────────────────────────────────────────────────> away
"""

import logging
from typing import Protocol

from google.protobuf.message import DecodeError

from frontend.engine.core import Core
from frontend.engine.dispatcher import Dispatcher
from frontend.engine.socket import EngineSocket, MakeSocket
from frontend.engine.step_outputs import dispatch
from frontend.errors import EngineRefused
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.transport import BadFrame, pack, unpack

log = logging.getLogger(__name__)


class Owner(Protocol):
    """Decides what a core is used for: EngineClient."""

    hello: engine_pb2.Hello
    """How the frontend presents itself, without an epoch."""

    def on_welcome(self, core: Core) -> None:
        """The core has introduced itself: after its start, or on a new connection."""

    def on_heartbeat(self, core: Core) -> None:
        """A welcomed core has sent a message."""

    def on_lost(self, core: Core) -> None:
        """The core will not answer its requests (in_flight) any more."""

    def on_cache_changes(self, core: Core, changes: engine_pb2.CacheChanges) -> None:
        """The core tells a watch of its prefix cache what has changed."""

    def on_command(self, core: Core, command: engine_pb2.FrontendCommand) -> None:
        """The core passes on an operator's command."""


class EngineConnection(Core):
    """The connection to one core: what the core sends. Methods belong to the event loop's thread."""

    def __init__(
        self,
        address: str,
        identity: bytes,
        owner: Owner,
        requests: Dispatcher,
        make_socket: MakeSocket = EngineSocket,
    ) -> None:
        """identity: this frontend's, the same for all cores. requests: learns how requests end."""
        super().__init__(address)
        self._owner = owner
        self._requests = requests
        self._socket = make_socket(address, identity, self)

    def open(self) -> None:
        """Starts connecting; retries until it succeeds. Raises StartupError."""
        self._socket.open()

    def close(self) -> None:
        """Disconnects. Idempotent."""
        self.utility_calls.drop()
        self._socket.close()

    def send(self, message: engine_pb2.FrontendMessage) -> bool:
        return self._socket.send(pack(message))

    def say_hello(self) -> None:
        """Introduces this frontend; later Hellos are heartbeats."""
        hello = engine_pb2.Hello(known_epoch=self.epoch)
        hello.MergeFrom(self._owner.hello)
        self.flush()
        self.send(engine_pb2.FrontendMessage(hello=hello))
        self.num_unanswered += 1

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
            self.count_error(f"a message of the engine cannot be read: {error}")

    def _handle(self, message: engine_pb2.EngineMessage) -> None:
        self.num_unanswered = 0
        kind = message.WhichOneof("message")
        if kind == "step_outputs":
            if message.step_outputs.epoch == self.epoch:
                dispatch(message.step_outputs, self, self._requests)
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
        self.flush()
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
            self._requests.refuse(self, entry, error)
