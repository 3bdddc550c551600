"""Errors that reach clients, and the google.rpc details that they carry.

A ServiceError refuses an RPC, or ends it; UNAVAILABLE and RESOURCE_EXHAUSTED may be retried. A ProtocolError
never leaves the frontend: the core's output is inconsistent.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from pagewire.errors import PagewireError
from pagewire.v1 import inspection_pb2

DOMAIN = inspection_pb2.DESCRIPTOR.package
"""google.rpc.ErrorInfo.domain of every error: the proto package, which is as unique as the methods' names."""
RETRY_AFTER = 1.0
"""Seconds that a client is asked to wait for an engine: the interval of its heartbeats."""
MAX_TEXT, MAX_NAME = 2048, 256
"""Characters of a text, and of a name, in a status. Errors quote what clients send, which may be megabytes:
statuses travel in trailers, of which HTTP/2 peers accept 8 KiB, and wait for their readers."""
LONGEST_RETRY = 86_400.0
"""Seconds; caps what a core says."""
_HTTP_STATUS = {
    code_pb2.CANCELLED: 499,
    code_pb2.UNKNOWN: 500,
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.DEADLINE_EXCEEDED: 504,
    code_pb2.NOT_FOUND: 404,
    code_pb2.ALREADY_EXISTS: 409,
    code_pb2.PERMISSION_DENIED: 403,
    code_pb2.UNAUTHENTICATED: 401,
    code_pb2.RESOURCE_EXHAUSTED: 429,
    code_pb2.FAILED_PRECONDITION: 400,
    code_pb2.ABORTED: 409,
    code_pb2.OUT_OF_RANGE: 400,
    code_pb2.UNIMPLEMENTED: 501,
    code_pb2.INTERNAL: 500,
    code_pb2.UNAVAILABLE: 503,
    code_pb2.DATA_LOSS: 500,
}


class ServiceError(PagewireError):
    """An RPC is refused or fails.

    code:        google.rpc.Code.
    reason:      google.rpc.ErrorInfo.reason, for programs.
    message:     one sentence, for developers; no prompt text, no file paths.
    violations:  path of a field -> what is wrong with it.
    metadata:    google.rpc.ErrorInfo.metadata.
    retry_after: seconds, if a retry makes sense.
    resource:    (type, name) of what was not found.
    quota:       the tenant's exhausted quota.
    """

    code: int = code_pb2.INTERNAL
    reason: str = "INTERNAL"
    text: str = ""
    """The message where none is given."""
    retry_after: float | None = None
    status: int = 0
    """The HTTP status; 0: that for the code, as google/rpc/code.proto maps them."""

    def __init__(
        self,
        message: str = "",
        *,
        violations: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        resource: tuple[str, str] | None = None,
        quota: str = "",
    ) -> None:
        self.message = message or self.text
        super().__init__(self.message)
        self.violations = violations or {}
        self.metadata = metadata or {}
        if retry_after is not None:
            self.retry_after = retry_after
        self.resource = resource
        self.quota = quota

    @property
    def http_status(self) -> int:
        """The HTTP status of an answer with the error."""
        return self.status or _HTTP_STATUS[self.code]


class InvalidRequest(ServiceError):
    """Fields are out of range, malformed or contradictory."""

    code = code_pb2.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, violations: Mapping[str, str], metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(_sentences(violations), violations=violations, metadata=metadata)


class Malformed(ServiceError):
    """The request's bytes are not a message of the method's type."""

    code = code_pb2.INVALID_ARGUMENT
    reason = "MALFORMED_MESSAGE"
    text = "the request cannot be parsed as the method's message, or is nested too deeply"


class TooManyFields(ServiceError):
    """The request's message is of so many fields that decoding it would take too long."""

    code = code_pb2.INVALID_ARGUMENT
    reason = "TOO_MANY_FIELDS"

    def __init__(self, max_fields: int, max_nested: int) -> None:
        super().__init__(
            f"a message must have at most {max_fields} fields, a packed list counting as one, and at most "
            f"{max_nested} messages inside it"
        )


class Unsupported(InvalidRequest):
    """Fields are not implemented yet: no field that a client sets is silently ignored."""

    reason = "FEATURE_UNSUPPORTED"


class ContextLengthExceeded(InvalidRequest):
    """The prompt exceeds the context, or leaves no room for output in it. at_least: prompt_tokens is a lower
    bound."""

    reason = "CONTEXT_LENGTH_EXCEEDED"

    def __init__(self, path: str, prompt_tokens: int, max_model_len: int, *, at_least: bool = False) -> None:
        amount = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
        problem = "exceed the" if prompt_tokens > max_model_len else "leave no room for output in a"
        text = f"{amount} tokens {problem} context of {max_model_len}"
        facts = {"prompt_tokens": str(prompt_tokens), "max_model_len": str(max_model_len)}
        super().__init__({path: text}, metadata=facts)


class ModelNotFound(ServiceError):
    """No model or adapter of that name is served."""

    code = code_pb2.NOT_FOUND
    reason = "MODEL_NOT_FOUND"

    def __init__(self, name: str, field: str = "model") -> None:
        """field: of the request, which has the name."""
        kind = "adapter" if field == "adapter" else "model"
        violations = {field: f"no {kind} of that name is served here"}
        super().__init__(_sentences(violations), violations=violations, resource=(kind, name))


class AdapterChanged(ServiceError):
    """A continuation names an adapter that is not there any more."""

    code = code_pb2.FAILED_PRECONDITION
    reason = "ADAPTER_CHANGED"
    text = "continuation.adapter_digest: the adapter has another digest now, with which outputs would differ"


class MediaChanged(ServiceError):
    """A URL of a continuation names another file than when the stream began."""

    code = code_pb2.FAILED_PRECONDITION
    reason = "MEDIA_CHANGED"
    text = (
        "continuation.media_digests: a URL of the prompt has another file now, with which the output would"
        " differ, or no URL at all; begin again"
    )


class MediaUnknown(ServiceError):
    """A prompt names a file by its digest that the frontend does not keep."""

    code = code_pb2.FAILED_PRECONDITION
    reason = "MEDIA_UNKNOWN"

    def __init__(self, violations: Mapping[str, str]) -> None:
        super().__init__(_sentences(violations), violations=violations)


class MediaUnavailable(ServiceError):
    """The server of a URL does not give its file now."""

    code = code_pb2.UNAVAILABLE
    reason = "MEDIA_UNAVAILABLE"

    def __init__(self, violations: Mapping[str, str]) -> None:
        super().__init__(_sentences(violations), violations=violations)


class AdaptersDiffer(ServiceError):
    """Engine cores have loaded different adapters from one folder."""

    code = code_pb2.FAILED_PRECONDITION
    reason = "ADAPTERS_DIFFER"
    text = "the engines have found different files: make them equal, and load the adapter again"


class RequestExists(ServiceError):
    """The request_id belongs to a request in flight with other content."""

    code = code_pb2.ALREADY_EXISTS
    reason = "REQUEST_ID_IN_USE"
    text = "request_id: a request with this id and other content is in flight"


class RequestNotFound(ServiceError):
    """No request of that id is in flight."""

    code = code_pb2.NOT_FOUND
    reason = "REQUEST_NOT_FOUND"

    def __init__(self, request_id: str) -> None:
        super().__init__("no request of that id is in flight", resource=("request", request_id))


class FrontendNotFound(ServiceError):
    """No frontend of that name is connected to the engine cores."""

    code = code_pb2.NOT_FOUND
    reason = "FRONTEND_NOT_FOUND"

    def __init__(self, name: str, known: str) -> None:
        """known: those there are, in words."""
        super().__init__(f"frontend: none has that name; there are {known}", resource=("frontend", name))


class Unimplemented(ServiceError):
    """The RPC is part of the contract, but not implemented yet."""

    code = code_pb2.UNIMPLEMENTED
    reason = "FEATURE_UNSUPPORTED"

    def __init__(self, rpc: str) -> None:
        super().__init__(f"{rpc} is not implemented yet")


class Unauthenticated(ServiceError):
    """The call has no valid token."""

    code = code_pb2.UNAUTHENTICATED

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PermissionDenied(ServiceError):
    """The caller is authenticated, and may not do this."""

    code = code_pb2.PERMISSION_DENIED


class AdminsOnly(PermissionDenied):
    """The method, or the use of a field, is reserved to admins."""

    reason = "ADMIN_ONLY"


class TenantMismatch(PermissionDenied):
    """The request names another tenant than its token's."""

    reason = "TENANT_MISMATCH"
    text = "tenant: is not the tenant of the token; leave it out"


class TermsExceeded(PermissionDenied):
    """A field of the request asks for more than the tenant's token allows."""

    reason = "TOKEN_LIMIT"

    def __init__(self, violations: Mapping[str, str]) -> None:
        super().__init__(_sentences(violations), violations=violations)


class Aborted(ServiceError):
    """The request was aborted, and its partial answer is useless."""

    code = code_pb2.ABORTED
    reason = "REQUEST_ABORTED"
    text = "the request was aborted"


class ContinuedElsewhere(ServiceError):
    """A later call with the same request_id and the same content has taken over the request."""

    code = code_pb2.ABORTED
    reason = "CONTINUED_ELSEWHERE"
    text = "the request goes on in a later call with the same request_id"


class EngineNotReady(ServiceError):
    """The engine is loading, lost or silent; the request was not started."""

    code = code_pb2.UNAVAILABLE
    reason = "ENGINE_NOT_READY"
    text = "the engine is not ready"
    retry_after = RETRY_AFTER


class Draining(ServiceError):
    """This server is about to stop, or takes no new requests."""

    code = code_pb2.UNAVAILABLE
    reason = "DRAINING"
    text = "this server is going away: another one will take the request"
    retry_after = RETRY_AFTER


class ShuttingDown(ServiceError):
    """Drain and Resume come too late."""

    code = code_pb2.FAILED_PRECONDITION
    reason = "SHUTTING_DOWN"
    text = "this server is shutting down"


class EngineDead(ServiceError):
    """The engine was lost while it worked on the request."""

    code = code_pb2.UNAVAILABLE
    reason = "ENGINE_DEAD"
    text = "the engine went away while it worked on this request"


class FrontendFull(ServiceError):
    """The frontend's concurrency limits are reached; the request was not started."""

    code = code_pb2.RESOURCE_EXHAUSTED
    reason = "FRONTEND_FULL"

    def __init__(self, retry_after: float) -> None:
        super().__init__("this server has as much to do as it may", retry_after=retry_after)


class StreamFull(ServiceError):
    """A multiplexed stream has reached its limit of requests; this one was not started."""

    code = code_pb2.RESOURCE_EXHAUSTED
    reason = "STREAM_FULL"

    def __init__(self, limit: int) -> None:
        super().__init__(f"this stream has {limit} requests in flight already", retry_after=RETRY_AFTER)


class SlowConsumer(ServiceError):
    """The client has read no message for so long that its stream was ended."""

    code = code_pb2.ABORTED
    reason = "SLOW_CONSUMER"
    text = "the client did not take what was sent to it"


class Quarantined(ServiceError):
    """Several engines died in a row while they had the request, without progress: another attempt may kill
    one more. (Where the engine itself finds the cause, it says so.)"""

    reason = "REQUEST_QUARANTINED"
    text = "the engine died again and again while it worked on this request"


class EngineRefused(ServiceError):
    """The core ended the request with an error of its own. The message begins with the field, if one is at
    fault."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        field: str = "",
        retry_after: float | None = None,
        quota: str = "",
    ) -> None:
        known = code in code_pb2.Code.values() and code != code_pb2.OK
        if retry_after is None and code in (code_pb2.UNAVAILABLE, code_pb2.RESOURCE_EXHAUSTED):
            retry_after = RETRY_AFTER
        if retry_after is not None:
            retry_after = min(max(retry_after, 0.0), LONGEST_RETRY)
        violations = {field: message.removeprefix(f"{field} ")} if field else None
        super().__init__(message, violations=violations, retry_after=retry_after, quota=quota)
        self.code = code if known else code_pb2.INTERNAL
        self.reason = reason or "ENGINE_ERROR"


class InternalError(ServiceError):
    """A bug in the server. The details are in its log only."""

    text = "internal error; the server's log has the details"


class ProtocolError(PagewireError):
    """The core's output does not continue what the frontend holds."""


def _sentences(violations: Mapping[str, str]) -> str:
    return "; ".join(f"{path}: {text}" for path, text in violations.items())


def to_status(error: ServiceError) -> status_pb2.Status:
    """Returns the google.rpc.Status of an error with all of its details."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=dict(error.metadata))
    details: list[Any] = [info]
    text = error.message[:MAX_TEXT]
    if error.violations:
        violation = error_details_pb2.BadRequest.FieldViolation
        fields = [
            violation(field=path[:MAX_NAME], description=problem[:MAX_TEXT])
            for path, problem in error.violations.items()
        ]
        details.append(error_details_pb2.BadRequest(field_violations=fields))
    if error.resource is not None:
        kind, name = error.resource
        details.append(error_details_pb2.ResourceInfo(resource_type=kind, resource_name=name[:MAX_NAME]))
    if error.quota:
        quota = error_details_pb2.QuotaFailure.Violation(subject=error.quota, description=text)
        details.append(error_details_pb2.QuotaFailure(violations=[quota]))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after * 1e9))
        details.append(retry)
    status = status_pb2.Status(code=error.code, message=text)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status
