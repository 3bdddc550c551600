"""Errors that only HTTP has. What they carry beside a google.rpc code is their own HTTP status."""

from google.rpc import code_pb2

from frontend.errors import PermissionDenied, ServiceError


class Disconnected(Exception):
    """The client has closed its connection: there is nothing to answer."""


class BodyTooLarge(ServiceError):
    """The request's body exceeds --max-request-bytes."""

    code = code_pb2.INVALID_ARGUMENT
    reason = "REQUEST_TOO_LARGE"
    status = 413

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body must be at most {max_bytes} bytes")


class BodyTooSlow(ServiceError):
    """The request's body did not arrive in time."""

    code = code_pb2.DEADLINE_EXCEEDED
    reason = "REQUEST_TIMEOUT"
    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the body must arrive within {seconds:g} s")


class DeadlineExceeded(ServiceError):
    """The time that the client gave the request has passed."""

    code = code_pb2.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"
    text = "the request's time (X-Request-Timeout) has passed"


class ForeignHost(PermissionDenied):
    """The Host or Origin header belongs to a page from elsewhere."""

    reason = "FOREIGN_HOST"


class NotServed(ServiceError):
    """No such path, or not with this method (METHOD_NOT_ALLOWED)."""

    reason = "NOT_FOUND"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code_pb2.NOT_FOUND
        if status != 404:
            self.code, self.reason = code_pb2.UNIMPLEMENTED, "METHOD_NOT_ALLOWED"
