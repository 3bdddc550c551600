"""What frontends are told of requests that end by an error."""

from collections.abc import Callable

from engine_core.counters import Counters
from engine_core.errors import Code, Refused
from pagewire.internal.v1.engine_pb2 import EngineMessage, RequestFailed

BUG = Code.INTERNAL, "INTERNAL", "internal error of the engine core"
"""Code, reason and message for what nobody but us can explain."""


class Failures:
    """Tells them, and counts."""

    def __init__(self, epoch: int, send: Callable[[bytes, EngineMessage], None], counters: Counters) -> None:
        """send: takes (frontend, message). counters: its `failures` are counted here."""
        self._epoch = epoch
        self._send = send
        self._counters = counters

    def tell(self, frontend: bytes, handle: int, code: Code, reason: str, message: str) -> None:
        """A request that was taken has ended."""
        self._counters.failures[reason] += 1
        failure = RequestFailed(epoch=self._epoch, handle=handle, code=code, reason=reason, message=message)
        self._send(frontend, EngineMessage(request_failed=failure))

    def refuse(self, frontend: bytes, handle: int, refusal: Refused) -> None:
        """A request is not taken."""
        failure = RequestFailed(
            epoch=self._epoch,
            handle=handle,
            code=refusal.code,
            reason=refusal.reason,
            message=refusal.message,
            field=refusal.field,
            quota=refusal.quota,
        )
        if refusal.retry_after is not None:
            failure.retry_delay.FromNanoseconds(round(refusal.retry_after * 1e9))
        self._send(frontend, EngineMessage(request_failed=failure))
