"""Errors to google.rpc statuses."""

from google.rpc import code_pb2, error_details_pb2

from frontend import errors
from frontend.rpc.error_mapping import to_grpc


def details(error: errors.ServiceError) -> dict:
    found = {}
    for detail in errors.to_status(error).details:
        name = detail.TypeName().rpartition(".")[2]
        message = getattr(error_details_pb2, name)()
        assert detail.Unpack(message)
        found[name] = message
    return found


def test_every_error_has_a_domain_and_a_reason():
    made = [
        errors.InvalidRequest({"a.b": "is bad"}),
        errors.Unsupported({"a.b": "is not implemented yet"}),
        errors.ContextLengthExceeded("prompt", 7, 5),
        errors.ModelNotFound("x"),
        errors.RequestExists(),
        errors.Unimplemented("Drain"),
        errors.EngineNotReady(),
        errors.EngineDead(),
        errors.EngineRefused(code_pb2.RESOURCE_EXHAUSTED, "QUEUE_FULL", "full"),
        errors.InternalError(),
    ]
    for error in made:
        info = details(error)["ErrorInfo"]
        assert info.domain == "pagewire.v1" and info.reason == error.reason
        assert errors.to_status(error).code == error.code
    assert len({(error.code, error.reason) for error in made}) == len(made)


def test_every_error_has_a_status_for_http():
    assert all(errors.EngineRefused(code, "X", "x").http_status >= 400 for code in code_pb2.Code.values())
    assert errors.InvalidRequest({"a": "x"}).http_status == 400
    assert errors.EngineRefused(code_pb2.RESOURCE_EXHAUSTED, "QUEUE_FULL", "full").http_status == 429
    assert errors.EngineNotReady().http_status == 503


def test_fields_are_named():
    found = details(errors.InvalidRequest({"a": "x", "b.c": "y"}))
    violations = [(part.field, part.description) for part in found["BadRequest"].field_violations]
    assert violations == [("a", "x"), ("b.c", "y")]


def test_context_length():
    info = details(errors.ContextLengthExceeded("prompt", 70, 64))["ErrorInfo"]
    assert dict(info.metadata) == {"prompt_tokens": "70", "max_model_len": "64"}


def test_what_was_not_found():
    resource = details(errors.ModelNotFound("gpt"))["ResourceInfo"]
    assert (resource.resource_type, resource.resource_name) == ("model", "gpt")


def test_only_what_may_work_later_asks_to_be_tried_again():
    assert details(errors.EngineNotReady())["RetryInfo"].retry_delay.ToMilliseconds() == 1000
    assert "RetryInfo" in details(errors.EngineRefused(code_pb2.UNAVAILABLE, "X", "later"))
    assert "RetryInfo" not in details(errors.EngineRefused(code_pb2.INVALID_ARGUMENT, "X", "never"))
    assert "RetryInfo" not in details(errors.EngineDead())


def test_nonsense_from_the_core_is_an_internal_error():
    for code in (0, 99, -1):
        assert errors.EngineRefused(code, "", "?").code == code_pb2.INTERNAL


def test_an_overloaded_engine_says_when_to_come_back():
    """In the details, and in the trailer that gRPC's own retries obey."""
    error = errors.EngineRefused(code_pb2.RESOURCE_EXHAUSTED, "DEADLINE_UNREACHABLE", "x", retry_after=2.5)
    assert details(error)["RetryInfo"].retry_delay.ToMilliseconds() == 2500
    assert ("grpc-retry-pushback-ms", "2500") in to_grpc(error).trailing_metadata
    other = to_grpc(errors.ModelNotFound("x"))
    assert "grpc-retry-pushback-ms" not in dict(other.trailing_metadata)
