"""The frontend's side of the engine hop: heartbeats, dispatch of outputs, questions to the core, and
requests that outlive it."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from google.protobuf.message import DecodeError

from frontend.engine_socket import EngineSocket, Listener
from frontend.errors import (
    EngineDead,
    EngineNotReady,
    EngineRefused,
    InternalError,
    ProtocolError,
    Quarantined,
)
from frontend.journal import Entry, Journal, Sink
from frontend.scores import Scores, split_scores
from frontend.state import FAILED, SERVING, ServingState
from pagewire import __version__
from pagewire.columns import unpack_u8, unpack_u32, unpack_u32_array, unpack_u64
from pagewire.internal.v1 import engine_pb2
from pagewire.transport import BadFrame, new_identity, pack, unpack
from pagewire.v1 import admin_pb2

log = logging.getLogger(__name__)

HEARTBEAT = 0.5
"""Seconds between two Hello."""
SILENCE = 6
"""Hellos without a word in return after which a connected core counts as hung. It answers from its step
loop, also while it waits for the end of a step. They are counted, so that a frontend that was stopped for
a while itself, or a whole machine, blames nobody for it."""
ANSWER = 10.0
"""Seconds that a question to the core may take, which it answers between two steps: a large prompt on a
slow CPU is a long one."""


class Socket(Protocol):
    """What an EngineSocket does for an EngineClient."""

    def open(self) -> None:
        """Starts connecting. Raises StartupError."""

    def send(self, frame: bytes) -> bool:
        """Sends without waiting. False when there is no connection or the core does not read."""

    def close(self) -> None:
        """Disconnects. Idempotent."""


class EngineClient:
    """One engine core. All methods belong to the event loop's thread."""

    def __init__(
        self,
        address: str,
        state: ServingState,
        resume_timeout: float = 0.0,
        make_socket: Callable[[str, bytes, Listener], Socket] = EngineSocket,
    ) -> None:
        """resume_timeout: seconds that requests wait for another core when theirs has died. make_socket:
        takes the address, our identity, and who hears what comes in."""
        self.identity = new_identity()
        self.protocol_errors = 0
        self._state = state
        self._socket = make_socket(address, self.identity, self)
        self._welcome: engine_pb2.Welcome | None = None
        self._epoch = 0  # of the connection's Welcome; 0: not welcomed yet
        self._unanswered = 0  # Hellos since the core's last word
        self._handles = itertools.count(1)
        self._calls = itertools.count(1)
        self._journal = Journal(resume_timeout)
        self._answers: dict[int, asyncio.Future[engine_pb2.UtilityResult]] = {}
        self._heartbeat: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connects and introduces itself, for as long as it takes. Raises StartupError."""
        self._socket.open()
        self._heartbeat = asyncio.create_task(self._beat(), name="heartbeat")

    async def close(self) -> None:
        """Ends what is left and disconnects."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.wait([self._heartbeat])
        self._journal.fail_all(EngineDead())
        self._drop_questions()
        self._socket.close()

    @property
    def facts(self) -> engine_pb2.Welcome | None:
        """The last Welcome; None before the first."""
        return self._welcome

    @property
    def num_streams(self) -> int:
        """Requests in flight, and those that wait for another core."""
        return len(self._journal)

    def require(self) -> engine_pb2.Welcome:
        """What the engine said of itself. Raises EngineNotReady unless requests can be sent."""
        if self._welcome is None or not self._state.serves:
            name = admin_pb2.ServerState.Name(self._state.state).removeprefix("SERVER_STATE_").lower()
            raise EngineNotReady(f"the engine is not ready: {name}")
        return self._welcome

    def submit(self, request: engine_pb2.AddRequest, sink: Sink) -> int:
        """Sends a request, whose outputs go to the sink, again and again if need be. Returns a ticket,
        for release(). Raises EngineNotReady."""
        self.require()
        request.handle = next(self._handles)
        if not self._send(engine_pb2.FrontendMessage(add_request=request)):
            raise EngineNotReady("the engine does not take requests")
        self._journal.add(request, sink)
        return request.handle

    def release(self, ticket: int) -> None:
        """The sink is gone; what the core still does for it is aborted. Idempotent."""
        entry = self._journal.remove(ticket)
        if entry is not None and entry.handle:
            self._abort(entry.handle)

    def waits(self, ticket: int) -> bool:
        """Whether no core has the request, as its own has died."""
        return self._journal.waits(ticket)

    async def abort_by_ids(self, request_ids: Sequence[str]) -> list[str]:
        """Ends requests of any frontend; returns those that were in flight."""
        call = engine_pb2.Utility(abort_by_ids=engine_pb2.AbortByIds(request_ids=request_ids))
        result = await self._ask(call)
        return list(result.aborted.request_ids)

    async def load(self) -> admin_pb2.RankLoad:
        """The load now."""
        result = await self._ask(engine_pb2.Utility(get_load=engine_pb2.GetLoad()))
        return result.load.load

    async def reset_cache(self) -> None:
        """Empties the prefix cache."""
        await self._ask(engine_pb2.Utility(reset_cache=engine_pb2.ResetCache()))

    # What the socket tells.

    def on_connected(self) -> None:
        """Introduces itself without waiting for the next beat."""
        self._say_hello()

    def on_disconnected(self) -> None:
        """Nothing that the core has of us can be answered any more."""
        if self._epoch:
            self._lose_engine()

    def on_frame(self, frame: bytes) -> None:
        """One message of the core. One that cannot be read is counted and dropped."""
        try:
            message = engine_pb2.EngineMessage.FromString(unpack(frame))
            self._handle(message)
        except (BadFrame, DecodeError, ValueError) as error:
            self._count_error(f"a message of the engine cannot be read: {error}")

    def _handle(self, message: engine_pb2.EngineMessage) -> None:
        self._unanswered = 0
        kind = message.WhichOneof("message")
        if kind == "step_outputs":
            if message.step_outputs.epoch == self._epoch:
                self._dispatch(message.step_outputs)
        elif kind == "welcome":
            self._accept(message.welcome)
        elif kind == "request_failed":
            if message.request_failed.epoch == self._epoch:
                self._fail(message.request_failed)
        elif kind == "utility_result":
            answer = self._answers.pop(message.utility_result.call_id, None)
            if answer is not None and not answer.done():
                answer.set_result(message.utility_result)
        if self._epoch:
            self._state.set_engine(SERVING)
            self._resume()

    def _accept(self, welcome: engine_pb2.Welcome) -> None:
        if welcome.epoch != self._epoch:
            if self._epoch:
                self._lose_engine()  # another core has taken the place of the one that had our requests
            self._epoch = welcome.epoch
            log.info("welcomed by engine %s, epoch %d", welcome.instance_id, welcome.epoch)
        self._welcome = welcome

    def _dispatch(self, outputs: engine_pb2.StepOutputs) -> None:
        """Hands a step's outputs to their sinks. Work per step, not per token, except for lists."""
        now = time.monotonic_ns()
        journal = self._journal
        for handle, queue_us, cached in zip(
            unpack_u64(outputs.started_handles),
            unpack_u32(outputs.started_queue_us),
            unpack_u32(outputs.started_cached_tokens),
            strict=True,
        ):
            entry = journal.find(handle)
            if entry is not None:
                entry.sink.started(queue_us, cached)
        for part in outputs.prompt_logprobs:
            self._push_prompt_logprobs(part)
        columns = (
            unpack_u64(outputs.handles),
            unpack_u32(outputs.indexes),
            unpack_u32(outputs.positions),
            counts := unpack_u32(outputs.counts),
            unpack_u8(outputs.finish_reasons),
            unpack_u32(outputs.finish_token_ids),
        )
        token_ids = unpack_u32_array(outputs.token_ids)
        if len({len(column) for column in columns}) != 1 or sum(counts) != len(token_ids):
            raise ValueError("columns of different lengths")
        scores = split_scores(outputs, counts) if outputs.has_logprobs else itertools.repeat(None)
        end = 0
        for (handle, index, position, count, reason, matched), its in zip(
            zip(*columns, strict=True), scores, strict=False
        ):
            start, end = end, end + count
            entry = journal.find(handle)
            if entry is None:
                continue  # released; the core will have heard of it by the next step
            try:
                unknown_to_core = entry.sink.push(
                    index, position, token_ids[start:end], reason, matched, now, its
                )
            except ProtocolError as error:
                self._lose(entry, error)
                continue
            if entry.sink.ended:
                journal.drop(entry)
            if unknown_to_core:
                self._abort(handle, index)

    def _push_prompt_logprobs(self, part: engine_pb2.PromptLogprobs) -> None:
        scores = Scores.read(part.columns)
        entry = self._journal.find(part.handle)
        if entry is not None:
            try:
                entry.sink.push_prompt_logprobs(part.start, scores)
            except ProtocolError as error:
                self._lose(entry, error)

    def _lose(self, entry: Entry, error: ProtocolError) -> None:
        """What the core says of a request makes no sense: another attempt may."""
        self._count_error(str(error))
        self._abort(entry.handle)
        self._journal.lose(entry, InternalError(), InternalError())

    def _fail(self, failure: engine_pb2.RequestFailed) -> None:
        entry = self._journal.find(failure.handle)
        if entry is None:
            return
        retry_after = failure.retry_delay.ToNanoseconds() / 1e9 if failure.HasField("retry_delay") else None
        error = EngineRefused(failure.code, failure.reason, failure.message, failure.field, retry_after)
        if failure.reason == "ENGINE_DEAD":  # its last words, which it says of every request
            self._lose_engine()
        elif failure.reason == "FRONTEND_LOST":  # we were too slow for it
            self._journal.lose(entry, error, error)
        else:
            self._journal.fail(entry, error)

    def _lose_engine(self) -> None:
        """Nothing that the core has of us can be answered any more."""
        self._epoch = 0
        self._state.set_engine(FAILED)
        for entry in self._journal.in_flight():
            self._journal.lose(entry, EngineDead(), Quarantined())
        self._drop_questions()

    def _resume(self) -> None:
        """Sends again what was lost."""
        for entry in self._journal.waiting():
            handle = next(self._handles)
            request = self._journal.again(entry, handle)
            if not self._send(engine_pb2.FrontendMessage(add_request=request)):
                break  # more of them with the core's next word
            self._journal.resent(entry, handle)

    def _drop_questions(self) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(EngineNotReady("the engine went away"))

    # What we tell the core.

    async def _beat(self) -> None:
        while True:
            self._say_hello()
            self._unanswered += 1
            await asyncio.sleep(HEARTBEAT)
            if self._epoch and self._unanswered >= SILENCE:
                log.warning("the engine is silent")
                self._lose_engine()  # when it speaks again, it is welcome as any other

    def _say_hello(self) -> None:
        hello = engine_pb2.Hello(
            frontend_id=self.identity.hex(), version=__version__, known_epoch=self._epoch
        )
        self._send(engine_pb2.FrontendMessage(hello=hello))

    async def _ask(self, call: engine_pb2.Utility) -> engine_pb2.UtilityResult:
        self.require()
        call.call_id = next(self._calls)
        answer: asyncio.Future[engine_pb2.UtilityResult] = asyncio.get_running_loop().create_future()
        self._answers[call.call_id] = answer
        try:
            if not self._send(engine_pb2.FrontendMessage(utility=call)):
                raise EngineNotReady("the engine does not take requests")
            return await asyncio.wait_for(answer, ANSWER)
        except TimeoutError:
            raise EngineNotReady("the engine does not answer") from None
        finally:
            self._answers.pop(call.call_id, None)

    def _abort(self, handle: int, *indexes: int) -> None:
        abort = engine_pb2.Abort(handle=handle, indexes=indexes)
        self._send(engine_pb2.FrontendMessage(abort=abort))

    def _send(self, message: engine_pb2.FrontendMessage) -> bool:
        return self._socket.send(pack(message))

    def _count_error(self, text: str) -> None:
        self.protocol_errors += 1
        if self.protocol_errors.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
            log.error("%s (%d protocol errors so far)", text, self.protocol_errors)
