"""What AdminService says of requests, blocks, tenants and cores, over real gRPC; the engine is a fake."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import inspection_pb2 as pb
from tests.frontend.auth.test_authenticator import bearer
from tests.frontend.auth.test_service import ALICE, OPERATOR, listed
from tests.frontend.fakes import END, Output, Service, details_of, encode, make_request, run_service
from tests.patience import PATIENCE_S, soon

NOW_S = 1_700_000_000


@pytest.fixture
async def service(checkpoint, model) -> AsyncIterator[Service]:
    async with run_service(checkpoint, model=model, resume_timeout=PATIENCE_S) as service:
        yield service


def know(service: Service, *infos: pb.RequestInfo, total: int | None = None) -> None:
    """The engine lists these requests."""
    listed = pb.ListRequestsResponse(requests=infos, total=len(infos) if total is None else total)
    service.engine.answers["list_requests"] = engine_pb2.UtilityResult(requests=listed)


def info_of(request_id: str, age_s: int, **fields) -> pb.RequestInfo:
    info = pb.RequestInfo(request_id=request_id, **fields)
    info.age.seconds = age_s
    info.arrival_time.seconds = NOW_S - age_s
    return info


async def requests_of(service: Service, metadata=(), **fields) -> pb.ListRequestsResponse:
    return await service.admin.ListRequests(pb.ListRequestsRequest(**fields), metadata=metadata)


async def test_requests_are_listed_the_oldest_first(service):
    know(service, info_of("b", 2), info_of("a", 7), total=12)
    found = await requests_of(service, limit=2, tenant="t")
    assert [each.request_id for each in found.requests] == ["a", "b"] and found.total == 12
    assert all(each.HasField("rank") for each in found.requests) and not found.next_page_token
    (call,) = service.engine.asked
    assert (call.list_requests.limit, call.list_requests.tenant) == (3, "t")
    await requests_of(service)
    call = service.engine.asked[-1].list_requests
    assert call.limit == 101 and not call.HasField("tenant") and not call.after.name


async def test_requests_in_pages(service):
    """The engine is asked for what comes after the last request of a page, under the engine's id; a call of
    this frontend that no engine has is in its turn."""
    know(service, info_of("b", 2), info_of("a", 7), info_of("c", 2), total=9)
    first = await requests_of(service, page_size=2)
    assert [each.request_id for each in first.requests] == ["a", "b"] and first.total == 9
    second = await requests_of(service, page_size=2, page_token=first.next_page_token)
    assert [each.request_id for each in second.requests] == ["c"] and not second.next_page_token
    after = service.engine.asked[-1].list_requests.after
    assert (after.number, after.name) == ((NOW_S - 2) * 10**9, "b")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await requests_of(service, tenant="t", page_token=first.next_page_token)
    assert details_of(caught.value)["BadRequest"].field_violations[0].field == "page_token"
    call = service.generation.Generate(make_request(request_id="mine"))
    handle = (await soon(service.engine.requests.get())).handle
    await service.engine.output(handle, Output(encode("ab")))
    await call.read()
    await service.engine.stop()
    while service.frontend.state.serves:
        await service.frontend.state.changed()
    (info,) = (await requests_of(service, page_token=first.next_page_token)).requests
    assert info.request_id == "mine" and info.arrival_time.seconds > NOW_S
    call.cancel()


async def test_the_frontend_adds_what_it_measures(service):
    """The time of the first token, and that all output is there though the client has not taken it."""
    call = service.generation.Generate(make_request(request_id="mine", tenant="t", priority=5))
    handle = (await soon(service.engine.requests.get())).handle
    await service.engine.output(handle, Output(encode("a")), queue_us=0)
    await call.read()
    know(service, info_of("mine", 1, tenant="t", phase=pb.REQUEST_PHASE_DECODE, preemptions=3))
    (info,) = (await requests_of(service)).requests
    assert info.phase == pb.REQUEST_PHASE_DECODE and info.preemptions == 3
    assert info.timings.prefill.ToNanoseconds() > 0 and info.timings.decode.ToNanoseconds() > 0
    call.cancel()


async def test_without_an_engine_there_are_those_that_wait_for_it(service):
    know(service)
    call = service.generation.Generate(make_request(request_id="mine", tenant="t", priority=5))
    handle = (await soon(service.engine.requests.get())).handle
    await service.engine.output(handle, Output(encode("ab")))
    await call.read()
    await service.engine.stop()
    while service.frontend.state.serves:
        await service.frontend.state.changed()
    (info,) = (await requests_of(service)).requests
    assert (info.request_id, info.tenant, info.priority) == ("mine", "t", 5)
    assert (info.phase, info.waits_for) == (pb.REQUEST_PHASE_WITHOUT_ENGINE, pb.WAIT_CAUSE_ENGINE)
    assert info.prompt_tokens and info.output_tokens == 2 and not info.HasField("rank")
    assert info.frontend == service.frontend.engine.identity.hex() and info.age.ToNanoseconds() > 0
    explained = await service.admin.ExplainRequest(pb.ExplainRequestRequest(request_id="mine"))
    assert explained.request.phase == pb.REQUEST_PHASE_WITHOUT_ENGINE and not explained.sharers
    assert explained.parameters.origins["sampling.top_k"] == "generation_config.json"
    assert [end.token_id for end in explained.parameters.ends] == [END]
    assert not (await requests_of(service, tenant="other")).requests
    call.cancel()


async def test_what_is_not_in_flight_is_not_found(service):
    answer = engine_pb2.UtilityResult(explanation=pb.ExplainRequestResponse())
    service.engine.answers["explain_request"] = answer
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.admin.ExplainRequest(pb.ExplainRequestRequest(request_id="no"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert details_of(caught.value)["ErrorInfo"].reason == "REQUEST_NOT_FOUND"


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("ListRequests", pb.ListRequestsRequest(limit=0), "limit"),
        ("ListRequests", pb.ListRequestsRequest(limit=1001), "limit"),
        ("ListRequests", pb.ListRequestsRequest(page_token="x"), "page_token"),
        ("ListTenants", pb.ListTenantsRequest(limit=1001), "limit"),
        ("ListTenants", pb.ListTenantsRequest(page_size=-1), "page_size"),
        ("ListTenants", pb.ListTenantsRequest(page_token="x"), "page_token"),
        ("GetKvPool", pb.GetKvPoolRequest(max_cells=16385), "max_cells"),
        ("ExplainRequest", pb.ExplainRequestRequest(), "request_id"),
        ("ExplainRequest", pb.ExplainRequestRequest(request_id="x" * 257), "request_id"),
        ("ExplainRequest", pb.ExplainRequestRequest(request_id="x", tenant="t"), "tenant"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(service, method, request_, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(service.admin, method)(request_)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(caught.value)["BadRequest"].field_violations[0].field == field
    assert not service.engine.asked


async def test_an_engine_without_an_answer(service):
    """One that is older, or that has too many questions."""
    service.engine.answers["get_kv_pool"] = engine_pb2.UtilityResult()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.admin.GetKvPool(pb.GetKvPoolRequest())
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_pools_and_tenants_of_each_core(service):
    pool = pb.KvPool(num_blocks=64, holders=[pb.KvHolder(request_id="t/x", tenant="t")])
    service.engine.answers["get_kv_pool"] = engine_pb2.UtilityResult(kv_pool=pool)
    tenants = pb.ListTenantsResponse(tenants=[pb.TenantInfo(tenant="t", requests=3)], total=1)
    service.engine.answers["list_tenants"] = engine_pb2.UtilityResult(tenants=tenants)
    (pool,) = (await service.admin.GetKvPool(pb.GetKvPoolRequest())).pools
    assert pool.num_blocks == 64 and pool.holders[0].request_id == "t/x", "without tokens ids have no tenant"
    found = await service.admin.ListTenants(pb.ListTenantsRequest())
    assert found.total == 1 and found.tenants[0].requests == 3
    assert [call.get_kv_pool.max_cells for call in service.engine.asked] == [1024, 0]


async def test_tenants_in_pages_and_the_largest(service):
    rows = [pb.TenantInfo(tenant=name, requests=number) for number, name in enumerate(("", "a", "b", "c"))]
    tenants = pb.ListTenantsResponse(tenants=rows, total=4)
    service.engine.answers["list_tenants"] = engine_pb2.UtilityResult(tenants=tenants)
    listed, token = [], ""
    for expected in ("", "a", "b"):
        found = await service.admin.ListTenants(pb.ListTenantsRequest(page_size=1, page_token=token))
        listed += found.tenants
        token = found.next_page_token
        call = service.engine.asked[-1].list_tenants
        assert listed[-1].tenant == expected and token and call.page_size == 3 and not call.HasField("limit")
    assert call.page_token == "a"
    found = await service.admin.ListTenants(pb.ListTenantsRequest(page_size=1, page_token=token))
    assert [each.tenant for each in found.tenants] == ["c"] and not found.next_page_token
    found = await service.admin.ListTenants(pb.ListTenantsRequest(limit=2))
    call = service.engine.asked[-1].list_tenants
    assert call.limit == 2 and not call.page_size and not found.next_page_token


async def test_engines_and_what_happened_to_them(service):
    call = service.generation.Generate(make_request())
    await soon(service.engine.requests.get())
    found = await service.admin.ListEngines(pb.ListEnginesRequest())
    (engine,) = found.engines
    assert (engine.state, engine.instance_id, engine.requests_in_flight) == (
        pb.ENGINE_STATE_SERVING,
        "cafe",
        1,
    )
    assert engine.architecture == "FakeForCausalLM" and not engine.unanswered_heartbeats
    assert engine.role == pb.ENGINE_ROLE_BOTH
    assert [event.kind for event in found.events] == [pb.ENGINE_EVENT_KIND_SERVES]
    await service.engine.stop()
    while service.frontend.state.serves:
        await service.frontend.state.changed()
    found = await service.admin.ListEngines(pb.ListEnginesRequest())
    assert found.engines[0].state == pb.ENGINE_STATE_AWAY
    service.engine.epoch = 2
    await service.engine.start()
    await soon(service.engine.requests.get())
    events = (await service.admin.ListEngines(pb.ListEnginesRequest())).events
    kinds = ["RESUMED", "SERVES", "LOST", "SERVES"]
    assert [event.kind for event in events] == [
        pb.EngineEventKind.Value(f"ENGINE_EVENT_KIND_{name}") for name in kinds
    ]
    assert [event.requests for event in events] == [1, 0, 1, 0] and events[0].time.seconds > 1_700_000_000
    call.cancel()


async def test_a_tenant_sees_its_own(checkpoint, model, tmp_path: Path):
    """And under the ids that its clients know; an operator sees all, and may name a tenant."""
    path = tmp_path / "tokens.yaml"
    path.write_text("tokens:\n" + listed("alice") + listed("operator", role="admin"))
    async with run_service(checkpoint, model=model, auth_file=str(path)) as service:
        know(service, info_of("alice/x", 1, tenant="alice"))
        (info,) = (await requests_of(service, ALICE)).requests
        assert info.request_id == "x" and service.engine.asked[-1].list_requests.tenant == "alice"
        await requests_of(service, OPERATOR)
        assert not service.engine.asked[-1].list_requests.HasField("tenant")
        await requests_of(service, OPERATOR, tenant="bob")
        assert service.engine.asked[-1].list_requests.tenant == "bob"
        explanation = pb.ExplainRequestResponse(
            request=info_of("alice/x", 1, tenant="alice"), sharers=[pb.BlockSharer(request_id="alice/y")]
        )
        service.engine.answers["explain_request"] = engine_pb2.UtilityResult(explanation=explanation)
        for metadata, tenant in ((ALICE, ""), (OPERATOR, "alice")):
            asked = pb.ExplainRequestRequest(request_id="x", tenant=tenant)
            found = await service.admin.ExplainRequest(asked, metadata=metadata)
            assert (found.request.request_id, found.sharers[0].request_id) == ("x", "y")
            assert service.engine.asked[-1].explain_request.request_id == "alice/x"
        for call in (
            service.admin.ListRequests(pb.ListRequestsRequest(tenant="operator"), metadata=ALICE),
            service.admin.ExplainRequest(
                pb.ExplainRequestRequest(request_id="x", tenant="operator"), metadata=ALICE
            ),
            service.admin.GetKvPool(pb.GetKvPoolRequest(), metadata=ALICE),
            service.admin.ListTenants(pb.ListTenantsRequest(), metadata=ALICE),
            service.admin.ListEngines(pb.ListEnginesRequest(), metadata=ALICE),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await requests_of(service, bearer("wrong"))
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
