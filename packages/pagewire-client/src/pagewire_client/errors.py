"""Exceptions of the clients, made from gRPC statuses and their google.rpc details.

PagewireError
└── RpcError              any status but OK
    ├── InvalidArgument   a field is wrong, or not implemented yet; has .field
    ├── NotFound          no such model, or no such request in flight
    ├── AlreadyExists     the request id is in flight
    ├── Unauthenticated, PermissionDenied
    ├── ResourceExhausted overload; has .retry_after
    ├── Unavailable       no server, loading, draining, or the engine died; has .retry_after
    ├── DeadlineExceeded  the timeout of the call
    ├── Cancelled
    ├── Unimplemented
    └── InternalError     a bug of the server
"""

from collections.abc import Iterable

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from pagewire.errors import PagewireError
from pagewire.v1 import generation_pb2

_DETAILS_KEY = "grpc-status-details-bin"
_HANDSHAKE = "handshake failed"
"""Part of gRPC's message for a failed TLS handshake."""
_HUNG_UP = "Socket closed"
"""Part of its message for a connection that was accepted and closed, as TLS ports do to plain clients."""


class RpcError(PagewireError):
    """A call failed.

    code: gRPC status. message: the server's message. reason: ErrorInfo.reason, such as "FEATURE_UNSUPPORTED";
    may be empty. metadata: ErrorInfo.metadata. field: path of the invalid field of the request; may be empty.
    retry_after: seconds to wait before another attempt, if the server said so.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = ""
        self.metadata: dict[str, str] = {}
        self.field = ""
        self.retry_after: float | None = None

    def __str__(self) -> str:
        return f"{self.message} ({self.code.name})"


class InvalidArgument(RpcError):
    """The request is wrong; the same request will fail again."""


class NotFound(RpcError):
    """No such model, or no request of that id is in flight."""


class AlreadyExists(RpcError):
    """A request with this id is in flight."""


class Unauthenticated(RpcError):
    """Missing or wrong credentials."""

    todo = "which token? --token-file FILE, PAGEWIRE_TOKEN, or in Python Client(..., token=)"


class PermissionDenied(RpcError):
    """These credentials do not allow this."""


class ResourceExhausted(RpcError):
    """The service is overloaded, or a quota is used up."""


class Unavailable(RpcError):
    """No server accepts the request now; it may be repeated if nothing was received."""

    todo = "is the service running, and at this address? to start one: pagewire serve"


class DeadlineExceeded(RpcError):
    """The timeout of the call passed."""


class Cancelled(RpcError):
    """The call was cancelled."""


class Unimplemented(RpcError):
    """The server does not have this method."""


class InternalError(RpcError):
    """A bug of the server."""


_CLASSES: dict[grpc.StatusCode, type[RpcError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.INTERNAL: InternalError,
}

_CODES = {int(code.value[0]): code for code in grpc.StatusCode}


def from_status(code: grpc.StatusCode, message: str, trailers: Iterable[tuple[str, str | bytes]]) -> RpcError:
    """Returns the exception for a status; the details come from the trailing metadata."""
    error = _CLASSES.get(code, RpcError)(code, message)
    if isinstance(error, Unavailable) and _HANDSHAKE in message:
        error.todo = (
            "does the client trust the server's certificate, and the other way round? docs/security.md"
        )
    elif isinstance(error, Unavailable) and _HUNG_UP in message:
        error.todo = "if the service has TLS: --tls or --tls-ca FILE, or in Python Client(..., tls=)"
    for key, value in trailers:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            _add_details(error, status_pb2.Status.FromString(value).details)
    if isinstance(error, Unavailable) and error.reason:  # a server is there, and gave a reason
        error.todo = "wait, and try again: pagewire health --wait 60"
    return error


def from_grpc(error: grpc.RpcError) -> RpcError:
    """Returns the exception for an error of grpc or grpc.aio."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return RpcError(grpc.StatusCode.UNKNOWN, str(error))
    return from_status(error.code(), error.details() or "", error.trailing_metadata() or ())


def from_request_error(failure: generation_pb2.RequestError) -> RpcError:
    """Returns the exception for one request of a multiplexed stream."""
    code = _CODES.get(failure.code, grpc.StatusCode.UNKNOWN)
    error = _CLASSES.get(code, RpcError)(code, failure.message)
    _add_details(error, failure.details)
    return error


def _add_details(error: RpcError, details: Iterable[any_pb2.Any]) -> None:
    for detail in details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo.FromString(detail.value)
            error.reason, error.metadata = info.reason, dict(info.metadata)
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            request = error_details_pb2.BadRequest.FromString(detail.value)
            error.field = next((violation.field for violation in request.field_violations), "")
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo.FromString(detail.value)
            error.retry_after = retry.retry_delay.ToTimedelta().total_seconds()
