"""ORCA load reports, in trailers and out of band, over a real socket with the protos of xDS."""

import asyncio
import json
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from pagewire.v1 import admin_pb2
from pagewire_gateways.orca import ASKED
from pagewire_gateways.protos import orca_service_pb2
from pagewire_gateways.protos.orca_load_report_pb2 import OrcaLoadReport
from tests.frontend.fakes import Service, make_request, run_service, say

LOAD = admin_pb2.RankLoad(running_requests=6, waiting_requests=2, kv_used_tokens=256, kv_total_tokens=1024)


async def until_known(service: Service) -> None:
    """Waits until the frontend has heard the load in a heartbeat."""
    service.engine.load = LOAD
    while service.frontend.engine.cores[0].last_load != LOAD:
        await asyncio.sleep(0.01)


async def trailers(service: Service, form: str | None) -> dict[str, Any]:
    """Those of a generation."""
    metadata = ((ASKED, form),) if form is not None else ()
    call = service.generation.Generate(make_request(), metadata=metadata)
    assert [message async for message in call]
    return dict(await call.trailing_metadata())


async def test_trailers_have_a_report_in_the_form_that_is_asked_for(checkpoint):
    """gRPC's own library hides the binary form from programs: test_gateway.py reads that by grpcurl."""
    async with run_service(checkpoint, say([10]), orca=True) as service:
        await until_known(service)
        report = await stream(service).read()
        assert report.utilization == {"kv_cache": 0.25}
        assert report.named_metrics == {
            "kv_cache_usage_perc": 0.25,
            "num_requests_running": 6.0,
            "num_requests_waiting": 2.0,
        }
        assert report.application_utilization == 8 / 32
        kind, _, text = (await trailers(service, "JSON"))["endpoint-load-metrics"].partition(" ")
        assert kind == "JSON" and json.loads(text)["named_metrics"]["num_requests_waiting"] == 2
        assert json.loads(text)["rps_fractional"] > 0
        assert "named_metrics.kv_cache_usage_perc=0.25" in (await trailers(service, "TEXT"))[
            "endpoint-load-metrics"
        ].removeprefix("TEXT ").split(",")
        for form in (None, "XML"):
            assert not any(name.startswith("endpoint-load") for name in await trailers(service, form))


async def test_the_figures_of_a_report_agree(checkpoint):
    """A request that runs counts at once, and one that has ended until the next heartbeat: Envoy refuses a
    report of no utilization beside a request that runs."""
    async with run_service(checkpoint, say([10]), orca=True) as service:
        for running in (0, 1):
            load = admin_pb2.RankLoad(running_requests=running, kv_total_tokens=1024)
            service.engine.load = load
            while service.frontend.engine.cores[0].last_load != load:
                await asyncio.sleep(0.01)
            report = json.loads(
                (await trailers(service, "JSON"))["endpoint-load-metrics"].removeprefix("JSON ")
            )
            named = report.get("named_metrics", {})
            assert (report.get("application_utilization", 0) > 0) == (named["num_requests_running"] > 0)
            assert named["num_requests_running"] >= running


def stream(service: Service, **fields: Any) -> Any:
    """A call of OpenRcaService, which has no generated client."""
    method = service.channel.unary_stream(
        "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
        request_serializer=orca_service_pb2.OrcaLoadReportRequest.SerializeToString,
        response_deserializer=OrcaLoadReport.FromString,
    )
    return method(orca_service_pb2.OrcaLoadReportRequest(**fields))


async def test_reports_come_out_of_band_until_the_server_stops(checkpoint):
    async with run_service(checkpoint, say([10]), orca=True) as service:
        await until_known(service)
        reports = stream(service, report_interval=Duration(nanos=1))
        for _ in range(2):
            assert (await reports.read()).utilization == {"kv_cache": 0.25}
        service.frontend.state.close()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            while await reports.read() is not grpc.aio.EOF:
                pass  # reports that were on their way
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_what_is_refused_does_not_count_as_work(checkpoint):
    async with run_service(checkpoint, say([10]), orca=True) as service:
        with pytest.raises(grpc.aio.AioRpcError):
            await service.generation.GenerateUnary(make_request(priority=1 << 20))
        assert (await stream(service).read()).rps_fractional == 0
        await service.generation.GenerateUnary(make_request())
        assert (await stream(service).read()).rps_fractional > 0


async def test_an_interval_that_is_wrong_is_named(checkpoint):
    async with run_service(checkpoint, say([10]), orca=True) as service:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream(service, report_interval=Duration(seconds=-1)).read()
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith("report_interval")


async def test_nothing_is_reported_unless_the_flag_asks_for_it(checkpoint):
    async with run_service(checkpoint, say([10])) as service:
        assert not any(name.startswith("endpoint-load") for name in await trailers(service, "BIN"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream(service).read()
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
