"""Refusals of requests, and the error of a broken invariant."""

from enum import IntEnum


class Code(IntEnum):
    """The codes of google.rpc.Code that the core uses."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Refused(Exception):
    """A request cannot be served. `field` is a path in GenerateRequest, with which the message begins; empty:
    no field is at fault."""

    def __init__(
        self,
        field: str,
        text: str,
        reason: str = "INVALID_FIELD",
        code: Code = Code.INVALID_ARGUMENT,
        retry_after: float | None = None,
        quota: str = "",
    ) -> None:
        """retry_after: seconds, if a retry may succeed. quota: the one that is used up."""
        super().__init__(f"{field} {text}" if field else text)
        self.field, self.message, self.reason, self.code = field, str(self), reason, code
        self.retry_after, self.quota = retry_after, quota


class InvariantError(AssertionError):
    """A data structure of the core contradicts itself: a bug of the core, not of a request."""
