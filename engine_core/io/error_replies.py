"""Replies to frontends about requests that end by an error."""

from collections.abc import Callable

from engine_core.counters import Counters
from engine_core.errors import Code, Refused
from engine_core.request import Request
from pagewire.internal.v1.engine_pb2 import EngineMessage, RequestFailed

BUG = Code.INTERNAL, "INTERNAL", "internal error of the engine core"
"""Code, reason and message for bugs of the engine core."""


def no_token_error(request: Request) -> tuple[Code, str, str]:
    """Returns code, reason and message for a request of which a row got no token."""
    if request.row_error:
        return Code.INVALID_ARGUMENT, "GRAMMAR_FAILED", f"structured_output: {request.row_error}"
    return Code.INTERNAL, "NO_LOGITS", "the model's output is NaN"


class ErrorReplies:
    """Sends the replies, and counts them."""

    def __init__(self, epoch: int, send: Callable[[bytes, EngineMessage], None], counters: Counters) -> None:
        """send: takes (frontend, message). counters: `failures` is incremented here."""
        self._epoch = epoch
        self._send = send
        self._counters = counters

    def fail(self, frontend: bytes, handle: int, code: Code, reason: str, message: str) -> None:
        """Replies that an admitted request has ended."""
        self._counters.failures[reason] += 1
        failure = RequestFailed(epoch=self._epoch, handle=handle, code=code, reason=reason, message=message)
        self._send(frontend, EngineMessage(request_failed=failure))

    def refuse(self, frontend: bytes, handle: int, refusal: Refused) -> None:
        """Replies that a request is not admitted."""
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
