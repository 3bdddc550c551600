"""A frontend that asks for tokens, over a real port; its engine is a fake."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from frontend.auth.tokens import digest_of, entry_line
from pagewire.v1 import admin_pb2, generation_pb2, model_pb2, pooling_pb2
from tests.frontend.auth.test_authenticator import ADMINS, EVERYBODY, METHODS, bearer
from tests.frontend.fakes import Output, Service, encode, make_request, run_service, text_of
from tests.patience import PATIENCE_S, soon

ALICE, BOB, OPERATOR = bearer("alice's"), bearer("bob's"), bearer("operator's")


def listed(tenant: str, **fields) -> str:
    return entry_line(digest_of(f"{tenant}'s"), tenant, fields)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    alice = listed("alice", weight=2.5, max_requests=3, max_tokens_per_minute=4)
    path.write_text("tokens:\n" + alice + listed("bob") + listed("operator", role="admin"))
    return path


@pytest.fixture
async def service(checkpoint, model, tokens) -> AsyncIterator[Service]:
    async with run_service(checkpoint, model=model, auth_file=str(tokens)) as service:
        yield service


async def status_of(service: Service, method: str, metadata=(), message: bytes = b"") -> str:
    """Of a call that no stub knows: its kind does not matter, one message goes out."""
    call = service.channel.unary_unary(method)(message, metadata=metadata, timeout=PATIENCE_S)
    return (await call.code()).name


def reason_of(error: grpc.aio.AioRpcError) -> str:
    packed, *_ = rpc_status.from_call(error).details
    info = error_details_pb2.ErrorInfo()
    assert packed.Unpack(info) and info.domain == "pagewire.v1"
    return info.reason


@contextlib.contextmanager
def refused(code: str, reason: str):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield caught
    assert (caught.value.code().name, reason_of(caught.value)) == (code, reason)


async def test_no_method_is_open_but_health(service):
    """S25: all of them, from the descriptors."""
    for method in METHODS:
        if method in EVERYBODY:
            continue
        assert await status_of(service, method) == "UNAUTHENTICATED", method
        assert await status_of(service, method, bearer("wrong")) == "UNAUTHENTICATED", method
        if method in ADMINS:
            assert await status_of(service, method, ALICE) == "PERMISSION_DENIED", method


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("priority", {"priority": -1}),
        ("sampling.n", {"sampling": {"n": 3}}),
        ("sampling.best_of", {"sampling": {"best_of": 3}}),
        ("sampling.beam_search.width", {"sampling": {"beam_search": {"width": 3}, "n": 1}}),
    ],
)
async def test_a_token_says_which_class_and_how_many_sequences_a_request_may_have(
    checkpoint, model, tmp_path, field, asked
):
    """Any token once gave the best class, which starves all other tenants."""
    path = tmp_path / "tokens.yaml"
    path.write_text("tokens:\n" + listed("alice", max_sequences=2) + listed("bob", min_priority=-5))
    async with run_service(checkpoint, model=model, auth_file=str(path)) as service:
        requests = service.engine.requests
        with refused("PERMISSION_DENIED", "TOKEN_LIMIT") as caught:
            await service.generation.GenerateUnary(make_request(**asked), metadata=ALICE, timeout=PATIENCE_S)
        assert requests.empty(), "it was refused before it was sent"
        details = rpc_status.from_call(caught.value).details
        bad = error_details_pb2.BadRequest()
        assert any(each.Unpack(bad) for each in details) and bad.field_violations[0].field == field


async def test_continuations_are_scored_within_the_quota(service):
    """All at once they would exceed max_requests, again with each retry."""
    request = pooling_pb2.ScoreContinuationsRequest(
        prompt={"token_ids": {"ids": encode("it is ")}}, continuations=["a", "b", "c", "d", "e"]
    )
    scored = asyncio.ensure_future(
        service.pooling.ScoreContinuations(request, metadata=ALICE, timeout=PATIENCE_S)
    )
    handles = [(await soon(service.engine.requests.get())).handle for _ in range(3)]
    for _ in range(2):
        await asyncio.sleep(0.05)
        assert service.engine.requests.empty()
        await service.engine.output(handles.pop(0), Output([9], 3))
        handles.append((await soon(service.engine.requests.get())).handle)
    for handle in handles:
        await service.engine.output(handle, Output([9], 3))
    assert len((await scored).scores) == 5


async def test_health_needs_no_token(service):
    stub = health_pb2_grpc.HealthStub(service.channel)
    response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert response.status == health_pb2.HealthCheckResponse.SERVING
    async for response in stub.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S):
        assert response.status == health_pb2.HealthCheckResponse.SERVING
        break


async def test_authenticated_callers_learn_that_a_method_does_not_exist(service):
    for method in (
        "/pagewire.v1.AdminService/Nothing",
        "/x/Y",
        "/grpc.reflection.v1alpha.ServerReflection/X",
    ):
        assert await status_of(service, method) == "UNAUTHENTICATED"
        assert await status_of(service, method, OPERATOR) == "UNIMPLEMENTED"


async def test_reflection_is_off_unless_asked_for(checkpoint, model, tokens, service):
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    assert await status_of(service, reflection, OPERATOR) == "UNIMPLEMENTED"
    async with run_service(checkpoint, model=model, auth_file=str(tokens), reflection=True) as other:
        assert await status_of(other, reflection) == "UNAUTHENTICATED"
        assert await status_of(other, reflection, ALICE) == "OK"


async def test_a_refusal_does_not_wait_for_the_message(service):
    """The request is not read: an unauthenticated call costs nothing but its headers."""
    generate = service.channel.stream_stream("/pagewire.v1.GenerationService/Generate")

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    call = generate(never(), timeout=PATIENCE_S)
    assert await call.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_reasons(service):
    for metadata, reason in (((), "TOKEN_MISSING"), (bearer("x"), "TOKEN_INVALID")):
        with refused("UNAUTHENTICATED", reason):
            await service.models.ListModels(model_pb2.ListModelsRequest(), metadata=metadata)
    with refused("PERMISSION_DENIED", "ADMIN_ONLY"):
        await service.admin.GetLoad(admin_pb2.GetLoadRequest(), metadata=ALICE)
    with refused("PERMISSION_DENIED", "TENANT_MISMATCH"):
        await service.generation.GenerateUnary(make_request(tenant="bob"), metadata=ALICE)
    with refused("PERMISSION_DENIED", "TENANT_MISMATCH"):
        request = pooling_pb2.ScoreContinuationsRequest(
            prompt={"text": "hi"}, continuations=["x"], tenant="bob"
        )
        await service.pooling.ScoreContinuations(request, metadata=ALICE)


async def test_the_tenant_of_a_multiplexed_stream_is_that_of_its_requests(service):
    call = service.generation.GenerateMultiplexed(metadata=ALICE)
    await call.write(generation_pb2.GenerateMultiplexedRequest(generate=make_request(request_id="x")))
    sent = await soon(service.engine.requests.get())
    assert (sent.tenant, sent.request_id, sent.tenant_terms.max_requests) == ("alice", "alice/x", 3)
    theirs = make_request(request_id="y", tenant="bob")
    await call.write(generation_pb2.GenerateMultiplexedRequest(generate=theirs))
    (error,) = (await call.read()).errors
    assert (error.request_id, error.code) == ("y", grpc.StatusCode.PERMISSION_DENIED.value[0])
    abort = generation_pb2.AbortRequest(request_ids=["x"])
    await call.write(generation_pb2.GenerateMultiplexedRequest(abort=abort))
    (response,) = (await call.read()).responses
    assert (response.request_id, response.sequences[0].finish.reason) == ("x", 6)


async def test_the_engine_hears_of_the_tenant_and_its_terms(service):
    for metadata, named in ((ALICE, ""), (ALICE, "alice"), (OPERATOR, "")):
        call = service.generation.Generate(make_request(tenant=named, request_id="x"), metadata=metadata)
        sent = await soon(service.engine.requests.get())
        await service.engine.output(sent.handle, Output(encode("ok"), 3))
        messages = [message async for message in call]
        assert text_of(messages) == "ok" and messages[0].request_id == "x"
        tenant = "alice" if metadata is ALICE else "operator"
        assert (sent.tenant, sent.request_id) == (tenant, f"{tenant}/x")
        terms = sent.tenant_terms
        found = (terms.weight, terms.max_requests, terms.max_tokens_per_minute)
        assert found == ((2.5, 3, 4) if metadata is ALICE else (0.0, 0, 0))


async def test_ids_and_aborts_are_per_tenant(service):
    """A tenant cannot discover, block or end what another tenant has under an id."""
    calls, handles = [], []
    for metadata in (ALICE, BOB):
        calls.append(service.generation.Generate(make_request(request_id="x"), metadata=metadata))
        handles.append((await soon(service.engine.requests.get())).handle)
    other = make_request(request_id="x")
    other.stopping.max_tokens = 3
    with refused("ALREADY_EXISTS", "REQUEST_ID_IN_USE"):
        await service.generation.GenerateUnary(other, metadata=ALICE)

    async def abort(metadata, tenant: str = "", name: str = "x") -> list[str]:
        request = generation_pb2.AbortRequest(request_ids=[name], tenant=tenant)
        response = await service.generation.Abort(request, metadata=metadata)
        return list(response.aborted_request_ids)

    with refused("PERMISSION_DENIED", "ADMIN_ONLY"):
        await abort(BOB, tenant="alice")
    assert await abort(BOB, name="alice/x") == await abort(BOB, name="../alice/x") == []
    assert await abort(OPERATOR) == []
    assert await abort(BOB) == ["x"]
    assert await abort(OPERATOR, tenant="alice") == ["x"]
    for call, handle in zip(calls, handles, strict=True):
        await service.engine.output(handle, Output((), 6))
        assert [message async for message in call]


async def test_a_token_that_is_removed_is_refused_and_its_streams_go_on(service, tokens):
    files = service.frontend._files
    await files.stop()
    files._interval = 0.01
    files.start()
    call = service.generation.Generate(make_request(), metadata=BOB)
    handle = (await soon(service.engine.requests.get())).handle
    many = service.generation.GenerateMultiplexed(metadata=BOB)
    await many.write(generation_pb2.GenerateMultiplexedRequest(generate=make_request(request_id="x")))
    others = (await soon(service.engine.requests.get())).handle
    tokens.write_text("tokens:\n" + listed("alice") + listed("carol"))
    list_models = "/pagewire.v1.ModelService/ListModels"
    while await status_of(service, list_models, BOB) != "UNAUTHENTICATED":
        await asyncio.sleep(0.01)
    assert await status_of(service, list_models, bearer("carol's")) == "OK"
    await service.engine.output(handle, Output(encode("bye"), 3))
    assert text_of([message async for message in call]) == "bye"
    await many.write(generation_pb2.GenerateMultiplexedRequest(generate=make_request(request_id="y")))
    (error,) = (await soon(many.read())).errors
    assert error.request_id == "y" and error.code == grpc.StatusCode.UNAUTHENTICATED.value[0]
    await service.engine.output(others, Output(encode("bye"), 3))
    assert text_of((await many.read()).responses) == "bye"
    tokens.write_text("tokens: [")
    await asyncio.sleep(0.05)
    assert await status_of(service, list_models, bearer("carol's")) == "OK"
