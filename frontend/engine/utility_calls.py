"""Calls to a core with one reply each, matched by call id."""

import asyncio
import itertools
from collections.abc import Callable

from frontend.errors import EngineNotReady
from pagewire.internal.v1 import engine_pb2

ANSWER = 10.0
"""Seconds until a call times out. A core answers from its step loop, so this must exceed the longest step: a
large prompt on a slow CPU."""


class UtilityCalls:
    """The pending calls of one connection."""

    def __init__(self, send: Callable[[engine_pb2.FrontendMessage], bool]) -> None:
        """send: returns False when the core cannot be reached."""
        self._send = send
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[engine_pb2.UtilityResult]] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def ask(self, call: engine_pb2.Utility) -> engine_pb2.UtilityResult:
        """Returns the core's reply. Raises EngineNotReady when there is none."""
        question = engine_pb2.Utility()
        question.CopyFrom(call)
        question.call_id = next(self._numbers)
        answer: asyncio.Future[engine_pb2.UtilityResult] = asyncio.get_running_loop().create_future()
        self._open[question.call_id] = answer
        try:
            if not self._send(engine_pb2.FrontendMessage(utility=question)):
                raise EngineNotReady("the engine does not take requests")
            return await asyncio.wait_for(answer, ANSWER)
        except TimeoutError:
            raise EngineNotReady("the engine does not answer") from None
        finally:
            self._open.pop(question.call_id, None)

    def take(self, result: engine_pb2.UtilityResult) -> None:
        """Resolves the call that a reply belongs to. A reply to no pending call is dropped."""
        answer = self._open.pop(result.call_id, None)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def drop(self) -> None:
        """Fails all pending calls with EngineNotReady."""
        answers, self._open = self._open, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(EngineNotReady("the engine went away"))
