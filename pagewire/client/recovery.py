"""A generation whose server may die: where to send its request, when again, and what of it is new. No I/O.

A stream that broke is continued with what has been received (pagewire.v1.Continuation), at the next
address or at the same one when a server is back. Whoever reads it sees a pause. docs/streams.md says
what a continuation promises.
"""

import time
from collections.abc import Callable

from pagewire.client.errors import (
    AlreadyExists,
    Cancelled,
    InternalError,
    ResourceExhausted,
    RpcError,
    Unavailable,
)
from pagewire.client.results import Delta, Generation
from pagewire.v1 import generation_pb2

PATIENCE_S = 30.0
"""How long somebody who has seen the beginning waits for a server to go on; counted from the last message."""
MAX_BREAKS = 4
"""Connections that may break one after another without a new message: the request may be what breaks them."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_NOT_CONNECTED = "failed to connect to all addresses"
"""How gRPC's core begins the message of a call that has not left this machine."""
_NOT_READY = "ENGINE_NOT_READY"
DRAINING = "DRAINING"
"""ErrorInfo.reason of a server that goes away."""
_BLAMELESS = (_NOT_READY, DRAINING)
"""A server that waits for its engine, or goes away, refuses whatever comes: that says nothing about the
request."""
_MET_THE_END = "CANCELLED"
"""gRPC's core about a call that reaches a server in the moment in which it closes. (What this side cancels
has a message of its own.)"""
_RESET = "RST_STREAM"
"""In the message of a stream that a proxy gave up as its server was gone, which gRPC calls INTERNAL."""


class Recovery:
    """One request, over all its attempts."""

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        num_servers: int,
        place: int,
        timeout: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """place: of the server to begin with, below num_servers. timeout: seconds for all attempts."""
        self.generation = Generation()
        self.place = place
        self._request = request
        self._num_servers = num_servers
        self._timeout = timeout
        self._clock = clock
        self._start = self._last = clock()
        self._over: set[int] = set()  # sequences that have ended
        self._begun = False  # something of the answer has been received
        self._recovering = False
        self._num_breaks = 0  # since the last message
        self._num_failures = 0  # the same, with those that found no server

    def attempt(self) -> tuple[generation_pb2.GenerateRequest, float | None]:
        """What to send now, and its timeout in seconds."""
        passed = self._clock() - self._start
        left = None if self._timeout is None else max(self._timeout - passed, 0.0)
        if not self._begun:
            return self._request, left
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(self._request)
        request.sampling.seed = self.generation.seed
        request.ClearField("continuation")
        for output in self.generation.outputs:
            request.continuation.sequences.add(index=output.index, token_ids=output.token_ids)
        if request.stopping.HasField("time_limit"):
            limit = request.stopping.time_limit
            limit.FromNanoseconds(max(limit.ToNanoseconds() - round(passed * 1e9), 1))
        return request, left

    def received(self, response: generation_pb2.GenerateResponse) -> list[Delta]:
        """Takes in a message; what is new in it. A continuation repeats how sequences have ended."""
        self._begun = True
        for place in reversed(range(len(response.sequences))) if self._over else ():
            if response.sequences[place].index in self._over:
                del response.sequences[place]
        if response.sequences:  # a frontend repeats those ends by itself: the engine may still refuse
            self._recovering = False
            self._last = self._clock()
            self._num_breaks = self._num_failures = 0
        deltas = self.generation.add(response)
        for delta in deltas:
            if delta.finish_reason is not None:
                self._over.add(delta.index)
        return deltas

    @property
    def complete(self) -> bool:
        """Whether every sequence has ended."""
        return len(self._over) == max(self._request.sampling.n, 1)

    def misses_nothing(self, error: RpcError) -> bool:
        """Whether the call broke when every sequence had ended already: nothing is to be continued."""
        broke = isinstance(error, Unavailable) or _is_no_answer(error)
        return broke and self.complete

    def after(self, error: RpcError) -> float | None:
        """Seconds until the next attempt, at `place`; None: the error is the end of it."""
        if not self._may_go_on(error):
            return None
        self._num_failures += 1
        self.place = (self.place + 1) % self._num_servers
        if not self._recovering:  # nobody was there: each of the others is asked once
            return 0.0 if self._num_failures < self._num_servers else None
        if self._num_breaks > MAX_BREAKS or self._clock() - self._last > PATIENCE_S:
            return None
        rounds = self._num_failures // self._num_servers
        return min(_FIRST_PAUSE_S * 2.0**rounds, _LONGEST_PAUSE_S) if self._num_failures > 1 else 0.0

    def _may_go_on(self, error: RpcError) -> bool:
        if isinstance(error, AlreadyExists):  # the engine has not noticed yet that the server died
            return self._recovering
        if isinstance(error, ResourceExhausted):  # it would not be in time there; perhaps elsewhere
            return not self._recovering
        if not isinstance(error, Unavailable) and not _is_no_answer(error):
            return False
        connected = not error.message.startswith(_NOT_CONNECTED)
        broke = connected and (self._begun or error.reason in ("", DRAINING))
        if broke and not self._recovering:
            self._recovering, self._last = True, self._clock()
        if broke and error.reason not in _BLAMELESS:
            self._num_breaks += 1
        return True


def _is_no_answer(error: RpcError) -> bool:
    """Whether it was not a frontend of ours that said this, but a server or a proxy on its way out."""
    if isinstance(error, Cancelled):
        return error.message == _MET_THE_END
    return isinstance(error, InternalError) and not error.reason and _RESET in error.message
