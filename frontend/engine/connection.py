"""The connection to one engine core: its messages, and whether it is there. A step's output columns are
distributed: each sequence's tokens go to its sink, by position.

        Welcome          disconnected, silent, "ENGINE_DEAD", or a Welcome of another epoch
away ───────────> there ───────────────────────────────────────────────────────────────────> away
"""

import itertools
import logging
import time
from collections.abc import Mapping
from typing import Protocol

from google.protobuf.message import DecodeError

from frontend.engine.core import Core, JournalEntry
from frontend.engine.dispatcher import Dispatcher
from frontend.engine.logprobs import Scores, split_scores
from frontend.engine.socket import EngineSocket, MakeSocket
from frontend.errors import EngineRefused, ProtocolError
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u8, unpack_u32, unpack_u32_array, unpack_u64
from pagewire.ipc.transport import BadFrame, pack, unpack

log = logging.getLogger(__name__)

_OURS = KeyboardInterrupt, SystemExit
"""Exceptions that concern the process. Any other BaseException concerns one request: a panic in the
tokenizer's Rust code is not an Exception."""
NUM_WAITS = 7
"""Causes in StepOutputs.started_waits_us."""


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

    def on_leaving(self, core: Core) -> None:
        """The core ends soon, and says so while it still has its requests."""

    def on_cache_changes(self, core: Core, changes: engine_pb2.CacheChanges) -> None:
        """The core tells a watch of its prefix cache what has changed."""

    def on_adapters(self, core: Core, table: engine_pb2.AdapterTable) -> None:
        """The adapters that the core names have changed."""

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

    def send(self, message: engine_pb2.FrontendMessage, more: bytes | bytearray = b"") -> bool:
        return self._socket.send(pack(message, more))

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
            self.epoch, self.is_draining = 0, False
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
        elif kind == "adapters":
            if message.adapters.epoch == self.epoch:
                self.take_adapters(message.adapters)
                self._owner.on_adapters(self, message.adapters)
        elif kind == "leaving":
            if self.epoch and not self.is_draining:
                self.is_draining = True
                self._owner.on_leaving(self)
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
        self.take_adapters(welcome.adapters)
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


def dispatch(outputs: engine_pb2.StepOutputs, core: Core, requests: Dispatcher) -> None:
    """Hands the outputs of a step of `core` to their sinks. requests: learns how requests end.

    Work is per step and sequence, not per token, except for lists. Raises ValueError when the columns do not
    fit together.
    """
    now = time.monotonic_ns()
    in_flight = core.in_flight
    if outputs.started_handles:
        _push_started(outputs, in_flight)
    if outputs.draft_counts:
        _push_drafts(outputs, in_flight)
    if outputs.paused_handles:
        _push_paused(outputs, in_flight, now)
    for part in outputs.prompt_logprobs:
        _push_prompt_logprobs(part, core, requests)
    for vector in outputs.vectors:
        if (pooled := in_flight.get(vector.handle)) is not None:
            pooled.sink.vector = vector.values
    columns = (
        unpack_u64(outputs.handles),
        unpack_u32(outputs.indexes),
        unpack_u32(outputs.positions),
        counts := unpack_u32(outputs.counts),
        unpack_u8(outputs.finish_reasons),
        unpack_u32(outputs.finish_token_ids),
    )
    token_ids = unpack_u32_array(outputs.token_ids)
    rows = list(zip(*columns, strict=True))  # raises before anything is pushed when one is shorter
    if sum(counts) != len(token_ids):
        raise ValueError("columns of different lengths")
    scores = split_scores(outputs, counts) if outputs.has_logprobs else itertools.repeat(None)
    end = 0
    progressed: dict[JournalEntry, None] = {}  # of a core for prompts
    for (handle, index, position, count, reason, matched), own_scores in zip(rows, scores, strict=False):
        start, end = end, end + count
        entry = in_flight.get(handle)
        if entry is None:
            continue  # released; the abort reaches the core by the next step
        try:
            unknown_to_core = entry.sink.push(
                index, position, token_ids[start:end], reason, matched, now, own_scores
            )
        except ProtocolError as error:
            requests.invalid(core, entry, error)
            continue
        except _OURS:
            raise
        except BaseException as error:  # the other sequences of the step continue
            requests.give_up(core, entry, error)
            continue
        if entry.sink.ended:
            requests.complete(entry)
        elif core.role == engine_pb2.CORE_ROLE_PREFILL:
            progressed[entry] = None
        if unknown_to_core:
            core.abort(handle, index)
    if progressed:
        requests.hand_over(core, progressed)


def _push_started(outputs: engine_pb2.StepOutputs, in_flight: Mapping[int, JournalEntry]) -> None:
    handles = unpack_u64(outputs.started_handles)
    waits = unpack_u32(outputs.started_waits_us) or [0] * (NUM_WAITS * len(handles))
    for handle, queue_us, cached, place in zip(
        handles,
        unpack_u32(outputs.started_queue_us),
        unpack_u32(outputs.started_cached_tokens),
        range(0, len(waits), NUM_WAITS),
        strict=True,
    ):
        entry = in_flight.get(handle)
        if entry is not None:
            entry.sink.started(queue_us, cached, waits[place : place + NUM_WAITS])


def _push_paused(outputs: engine_pb2.StepOutputs, in_flight: Mapping[int, JournalEntry], now: int) -> None:
    handles, pauses = unpack_u64(outputs.paused_handles), unpack_u32(outputs.paused_us)
    for handle, pause_us in zip(handles, pauses, strict=True):
        entry = in_flight.get(handle)
        if entry is not None:
            entry.sink.paused(pause_us, now)


def _push_drafts(outputs: engine_pb2.StepOutputs, in_flight: Mapping[int, JournalEntry]) -> None:
    drafted = unpack_u32(outputs.draft_counts)
    methods = outputs.draft_methods or bytes(len(drafted))
    columns = (unpack_u64(outputs.handles), unpack_u32(outputs.counts), drafted, methods)
    for handle, count, num_drafted, method in list(
        zip(*columns, strict=True)
    ):  # raises before anything is pushed
        entry = in_flight.get(handle)
        if entry is not None and num_drafted:
            entry.sink.drafted(method, num_drafted, min(max(count - 1, 0), num_drafted))


def _push_prompt_logprobs(part: engine_pb2.PromptLogprobs, core: Core, requests: Dispatcher) -> None:
    scores = Scores.read(part.columns)
    entry = core.in_flight.get(part.handle)
    if entry is not None:
        try:
            entry.sink.push_prompt_logprobs(part.start, scores)
        except ProtocolError as error:
            requests.invalid(core, entry, error)
