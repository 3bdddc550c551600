"""Decides, after a failed attempt of a request, whether, when and to which server it is sent again. No I/O.

A stream that broke is continued from what has been received (pagewire.v1.Continuation), on the next server,
or on the same one once it is back. The reader sees a pause. docs/streams.md says what a continuation
guarantees.
"""

import time
from collections.abc import Callable

from pagewire.v1 import generation_pb2
from pagewire_client.errors import (
    AlreadyExists,
    Cancelled,
    InternalError,
    ResourceExhausted,
    RpcError,
    Unavailable,
)
from pagewire_client.images import name_files
from pagewire_client.results import Delta, Generation

PATIENCE_S = 30.0
"""Seconds for which a broken stream waits for a server, counted from the last message, or from when the last
server that had taken it was gone."""
MAX_BREAKS = 4
"""Connections that may break in a row without a new message: the request itself may be the cause."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_MAX_DOUBLINGS = 16
_NOT_CONNECTED = "failed to connect to all addresses"
"""Prefix of gRPC's message for a call that never reached a server."""
_NOT_READY = "ENGINE_NOT_READY"
_MEDIA_UNKNOWN = "MEDIA_UNKNOWN"
_CONTINUED = "CONTINUED_ELSEWHERE"
DRAINING = "DRAINING"
"""ErrorInfo.reason of a server that is about to stop."""
_BLAMELESS = (_NOT_READY, DRAINING)
"""Reasons for which a server refuses every request: they say nothing about this one."""
_SERVER_CLOSING = "CANCELLED"
"""gRPC's message for a call that reaches a server while it closes. (A call that the client cancels has a
different message.)"""
_RESET = "RST_STREAM"
"""Part of the message, with status INTERNAL, of a stream that a proxy reset because its server was gone."""


class Recovery:
    """The state of one request over all its attempts."""

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        num_servers: int,
        server: int,
        timeout: float | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        patience: float | None = None,
    ) -> None:
        """server: index of the first server, below num_servers. timeout: seconds for all attempts. patience:
        seconds to wait for a server, even if none has accepted the request yet; None: PATIENCE_S, and only
        once one has."""
        self.generation = Generation()
        self.server = server
        self._request = request
        self._num_servers = num_servers
        self._timeout = timeout
        self._patience = patience
        self._clock = clock
        self._start = self._last = clock()
        self._over: set[int] = set()  # indices of sequences that have ended
        self._begun = False  # a message has been received
        self._sends_files = False  # although a server may have them
        self._recovering = False
        self.has_broken = False
        """A connection of a server that may have begun it has broken."""
        self._num_taken = 0  # times that another call took the request over
        self._num_breaks = 0  # since the last message
        self._num_failures = 0  # since the last message or break; includes attempts that found no server

    def attempt(self) -> tuple[generation_pb2.GenerateRequest, float | None]:
        """Returns the message of the next attempt and its timeout in seconds."""
        passed = self._clock() - self._start
        left = None if self._timeout is None else max(self._timeout - passed, 0.0)
        if not self._begun:
            return self._request, left
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(self._request)
        request.request_id = self.generation.request_id
        request.sampling.seed = self.generation.seed
        request.ClearField("continuation")
        if self.generation.adapter_digest:
            request.continuation.adapter_digest = self.generation.adapter_digest
        request.continuation.media_digests.extend(self.generation.media_digests)
        if not self._sends_files:
            name_files(request.prompt)
        for output in self.generation.outputs:
            request.continuation.sequences.add(index=output.index, token_ids=output.token_ids)
        if request.stopping.HasField("time_limit"):
            limit = request.stopping.time_limit
            limit.FromNanoseconds(max(limit.ToNanoseconds() - round(passed * 1e9), 1))
        return request, left

    def received(self, response: generation_pb2.GenerateResponse) -> list[Delta]:
        """Adds a message to the generation and returns its deltas. A continuation repeats the ends of
        sequences that had ended before: these are dropped."""
        self._begun = True
        for position in reversed(range(len(response.sequences))) if self._over else ():
            if response.sequences[position].index in self._over:
                del response.sequences[position]
        if response.sequences:  # more than ends that the frontend repeats by itself
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
        """True when every sequence has ended."""
        return len(self._over) == max(self._request.sampling.n, 1)

    def is_complete_despite(self, error: RpcError) -> bool:
        """True if the call broke after every sequence had ended, so that nothing is left to continue."""
        broke = isinstance(error, Unavailable) or _is_no_answer(error)
        return broke and self.complete

    def after(self, error: RpcError) -> float | None:
        """Returns the seconds until the next attempt, on `server`, or None if the request has failed."""
        if error.reason == _MEDIA_UNKNOWN and self._begun and not self._sends_files:
            self._sends_files = True
            return 0.0
        if not self._may_retry(error):
            return None
        self._num_failures += 1
        self.server = (self.server + 1) % self._num_servers
        if not self._recovering:  # not accepted by any server yet: each one is tried once
            return 0.0 if self._num_failures < self._num_servers else None
        patience = PATIENCE_S if self._patience is None else self._patience
        if self._num_breaks > MAX_BREAKS or self._clock() - self._last > patience:
            return None
        rounds = min(self._num_failures // self._num_servers, _MAX_DOUBLINGS)
        return min(_FIRST_PAUSE_S * 2.0**rounds, _LONGEST_PAUSE_S) if self._num_failures > 1 else 0.0

    def _may_retry(self, error: RpcError) -> bool:
        if isinstance(error, AlreadyExists):  # the engine has not noticed yet that the frontend died
            return self._recovering
        if error.reason == _CONTINUED:  # by a call that broke before, and reached the engine after this one
            self._recovering = self.has_broken and self._num_taken < MAX_BREAKS
            self._num_taken += 1
            return self._recovering
        if isinstance(error, ResourceExhausted):  # another server may have room
            return not self._recovering
        if not isinstance(error, Unavailable) and not _is_no_answer(error):
            return False
        connected = not error.message.startswith(_NOT_CONNECTED)
        broke = connected and (self._begun or error.reason in ("", DRAINING))
        if (broke or self._patience is not None) and not self._recovering:
            self._recovering, self._last = True, self._clock()
        self.has_broken |= broke
        if broke and error.reason not in _BLAMELESS:
            self._num_breaks += 1
            self._num_failures = 0
            self._last = self._clock()  # a server was there until now
        return True


def _is_no_answer(error: RpcError) -> bool:
    """True if the status is not a frontend's answer, but that of a server or proxy that was closing."""
    if isinstance(error, Cancelled):
        return error.message == _SERVER_CLOSING
    return isinstance(error, InternalError) and not error.reason and _RESET in error.message
