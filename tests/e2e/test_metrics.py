"""What a whole service says of itself over HTTP, while it works and while parts of it do not."""

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from engine_core import metrics as engine_core
from frontend import metrics as frontend
from pagewire import Client
from pagewire.local_service import Service
from pagewire.supervisor import metrics as supervisor
from pagewire.telemetry.board import BUILD_INFO
from pagewire_client.errors import InvalidArgument
from tests.e2e import services

SECRET = "xyzzy plugh"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with services.start(device="simulated", profile="instant", frontends=2) as service:
        yield service


def get(service: Service, path: str, accept: str = "") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{service.facts['http']}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=services.PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def families(text: str, parse: Callable[[str], Any] = parse_text) -> dict[str, list[Any]]:
    return {family.name: family.samples for family in parse(text)}


def total(service: Service, name: str, **labels: str) -> float:
    """Of all samples of that name with these labels."""
    return sum(
        sample.value
        for samples in families(get(service, "/metrics")[1]).values()
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_every_process_is_there_and_every_metric_is_known(service: Service):
    found = families(get(service, "/metrics")[1])
    processes = {sample.labels["process"] for sample in found["process_cpu_seconds"]}
    assert processes == {"supervisor", "engine-core", "worker", "frontend-1", "frontend-2"}
    known = {
        metric.name.removesuffix("_total")
        for metric in (BUILD_INFO, *engine_core.METRICS, *frontend.METRICS, *supervisor.METRICS)
    }
    assert {name for name in found if not name.startswith("process_")} == known
    assert families(get(service, "/metrics", OPENMETRICS)[1], parse_openmetrics).keys() == found.keys()


def test_requests_are_counted_by_what_became_of_them(service: Service):
    def count(name: str, **labels: str) -> float:
        return total(service, f"pagewire_frontend_{name}", **labels)

    finished, refused = (
        count("requests_total", outcome="finished"),
        count("requests_total", outcome="refused"),
    )
    generated, seconds = count("generated_tokens_total"), count("request_seconds_count")
    steps = total(service, "pagewire_core_steps_total")
    with Client(service.address) as client:
        list(client.stream(SECRET, max_tokens=40, ignore_eos=True))
        client.generate(SECRET, max_tokens=2, ignore_eos=True)
        with pytest.raises(InvalidArgument):
            client.generate(SECRET, temperature=-1)
        services.wait_until(lambda: services.is_idle(client))
    assert count("requests_total", outcome="finished") == finished + 2
    assert count("requests_total", outcome="refused") == refused + 1
    assert count("refusals_total", reason="INVALID_FIELD") >= 1
    assert count("sequences_finished_total", reason="max_tokens") >= 2
    assert count("generated_tokens_total") == generated + 42
    assert count("request_seconds_count") == seconds + 2
    assert total(service, "pagewire_core_steps_total") >= steps + 42
    calls = {"grpc_method": "GenerateUnary", "grpc_type": "unary"}
    assert total(service, "grpc_server_handled_total", grpc_code="OK", **calls) >= 1
    assert total(service, "grpc_server_handled_total", grpc_code="InvalidArgument", **calls) >= 1
    assert total(service, "grpc_server_handled_total", grpc_code="OK", grpc_type="server_stream") >= 1


def test_the_times_of_a_request_add_up(service: Service):
    with Client(service.address) as client:
        client.generate("a b c", max_tokens=20)
    whole = total(service, "pagewire_frontend_request_seconds_sum")
    names = ("preprocess", "queue", "prefill", "decode")
    parts = sum(total(service, f"pagewire_frontend_{name}_seconds_sum") for name in names)
    assert whole == pytest.approx(parts)


def test_prompts_and_ids_are_not_found_there(service: Service):
    with Client(service.address) as client:
        client.generate(SECRET, max_tokens=2, request_id="id-of-a-request")
    _, text = get(service, "/metrics")
    assert not any(word in text for word in (*SECRET.split(), "id-of-a-request"))


def test_a_child_that_died_is_missed_and_comes_back():
    """Its frontends say that they do not serve; the supervisor goes on telling about the others."""
    with services.start(device="simulated", profile="instant") as service:
        assert get(service, "/readyz")[0] == 200
        (worker,) = services.processes(service.pid)["worker"]
        os.kill(worker, signal.SIGKILL)
        services.wait_until(lambda: total(service, "pagewire_supervisor_restarts_total") == 1)
        assert get(service, "/healthz")[0] == 200
        services.wait_until(lambda: get(service, "/readyz")[0] == 200)
        services.wait_until(lambda: total(service, "pagewire_supervisor_up") == 2)
        pause = partial(total, service, "pagewire_supervisor_last_pause_seconds", child="engine-core")
        services.wait_until(lambda: pause() > 0)


def test_a_frontend_that_hangs_is_not_ready():
    """Its HTTP thread stops with it: the missing answer is reported. It is not taken for hung: the one that
    replaces it might be ready before that."""
    with services.start(device="simulated", profile="instant", hang_timeout=0.0) as service:
        (frontend_pid,) = services.settled(service.pid)["frontend"]
        os.kill(frontend_pid, signal.SIGSTOP)
        try:
            assert get(service, "/readyz")[0] == 503
        finally:
            os.kill(frontend_pid, signal.SIGCONT)
        services.wait_until(lambda: get(service, "/readyz")[0] == 200)


def test_there_need_not_be_a_port():
    with services.start(device="simulated", profile="instant", http_port=-1) as service:
        assert "http" not in service.facts
