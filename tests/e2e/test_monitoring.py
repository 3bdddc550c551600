"""Prometheus reads real processes by deploy/prometheus: panels of the dashboard have series, alerts fire.

What differs from compose.yaml: addresses of the loopback interface in place of names, intervals of a second.
"""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pagewire import AsyncClient, Client, SamplingParams
from pagewire_client.errors import InternalError, RpcError
from tests.e2e import services
from tests.e2e.prometheus import CONFIGURATION, Prometheus, alerts, panels
from tests.e2e.test_speculation import LIST
from tests.e2e.topology import Topology, topology
from tests.free_ports import free_ports

BINARIES = {name: shutil.which(name) for name in ("prometheus", "promtool")}
MISSING = [name for name, path in BINARIES.items() if path is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

TRIGGER = 77
"""The engine dies of this token."""
ENGINE = {"device": "cpu", "speculate": "lookup", "max_num_seqs": 4, "max_num_queued_reqs": 8}
CALM = {
    'up{job="frontend"}': "1x80",
    'up{job="engine"}': "1x80",
    "pagewire_frontend_serving": "1x80",
    "pagewire_core_epoch_start_seconds": "5x80",
    "pagewire_core_requests_total": "0+1x80",
}
"""Series of twenty minutes, a sample every 15 s, in promtool's notation: FROM+STEPxTIMES, and _ for none."""
FIRST = "_x60 1x20"
"""A counter that begins with its first event."""
KNOWN = "_x40 0x20 1x20"
"""A counter that begins with 0."""
CASES = [
    ("NobodyServes", {"pagewire_frontend_serving": "0x80"}),
    ("NobodyServes", {"pagewire_frontend_serving": "_x80"}),
    ("FrontendMissing", {'up{job="frontend"}': "0x80"}),
    ("EngineMissing", {'up{job="engine"}': "0x80"}),
    ("EngineMissing", {"pagewire_core_epoch_start_seconds": "5x40 _x40"}),
    ("EngineRestarts", {"pagewire_core_epoch_start_seconds": "1x40 2 3 4x38"}),
    ("Quarantine", {'pagewire_frontend_failures_total{reason="REQUEST_QUARANTINED"}': FIRST}),
    ("Quarantine", {'pagewire_frontend_refusals_total{reason="REQUEST_QUARANTINED"}': FIRST}),
    ("Quarantine", {'pagewire_frontend_failures_total{reason="REQUEST_QUARANTINED"}': KNOWN}),
    ("Quarantine", {'pagewire_frontend_failures_total{reason="REQUEST_QUARANTINED"}': "3x60 4x20"}),
    ("InternalErrors", {'pagewire_frontend_failures_total{reason="INTERNAL"}': FIRST}),
    ("InternalErrors", {'pagewire_frontend_refusals_total{reason="INTERNAL"}': FIRST}),
    ("InternalErrors", {"pagewire_core_internal_errors_total": "0x60 1x20"}),
    ("InternalErrors", {"pagewire_core_broken_invariants_total": "0x60 1x20"}),
    ("Refusals", {'pagewire_core_refusals_total{reason="queue"}': "0+1x80"}),
    ("Queue", {f'pagewire_frontend_queue_seconds_bucket{{le="{le}"}}': "0+1x80" for le in (60, "+Inf")}),
    (
        "SlowFirstToken",
        {
            f'pagewire_frontend_time_to_first_token_seconds_bucket{{le="{le}"}}': "0+1x80"
            for le in (120, "+Inf")
        },
    ),
    ("Preemptions", {'pagewire_core_preemptions_total{kind="swap"}': "0+30x80"}),
    (
        "FrontendBusy",
        {f'pagewire_frontend_loop_lag_seconds_bucket{{le="{le}"}}': "0+1x80" for le in (1, "+Inf")},
    ),
    ("Descriptors", {"process_open_fds": "9x80", "process_max_fds": "10x80"}),
]
"""Alerts, and the series by which each fires, and no other."""
FIRING = "count by (alertname) (ALERTS{alertstate='firing'})"


@pytest.fixture(scope="module")
def watched() -> Iterator[tuple[Topology, Prometheus]]:
    with topology(2, engine=ENGINE) as service, running(service) as prometheus:
        yield service, prometheus


@contextlib.contextmanager
def running(service: Topology) -> Iterator[Prometheus]:
    """Prometheus, with data in the folder of the topology that it reads."""
    (port,) = free_ports(1)
    words = [f"--config.file={configure(service)}", f"--storage.tsdb.path={service.folder}/data"]
    words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    process = subprocess.Popen([str(BINARIES["prometheus"]), *words])
    try:
        server = Prometheus(f"127.0.0.1:{port}")
        services.wait_until(lambda: process.poll() is not None or server.is_ready())
        assert process.poll() is None
        yield server
    finally:
        process.kill()
        process.wait()


def configure(service: Topology) -> Path:
    """Writes the configuration of deploy/prometheus with a topology's addresses and intervals of a second."""
    shutil.copy(CONFIGURATION / "rules.yml", service.folder)
    content = yaml.safe_load((CONFIGURATION / "prometheus.yml").read_text())
    content["global"] = dict.fromkeys(content["global"], "1s")
    for job in content["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": service.metrics_addresses(job["job_name"])}]
    path = service.folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_configuration_and_the_rules_are_prometheus_own():
    words = [str(BINARIES["promtool"]), "check", "config", str(CONFIGURATION / "prometheus.yml")]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(alerts())} rules found" in run.stdout


def test_each_alert_fires_by_what_it_is_for(tmp_path: Path):
    """And none while all is well, or by events that are a while ago."""
    assert {f"Pagewire{name}" for name, _ in CASES} == alerts().keys()
    old = {
        'pagewire_frontend_failures_total{reason="INTERNAL"}': "9x80",
        'pagewire_frontend_refusals_total{reason="INTERNAL"}': "_x60 0x20",  # a frontend that has begun
        'pagewire_frontend_failures_total{reason="REQUEST_QUARANTINED"}': "_x60 0x20",
    }
    tests = [
        {
            "name": f"{name} {list(series)}",
            "interval": "15s",
            "input_series": [{"series": key, "values": value} for key, value in {**CALM, **series}.items()],
            "promql_expr_test": [{"expr": FIRING, "eval_time": "20m", "exp_samples": samples(name)}],
        }
        for name, series in [("", old), *CASES]
    ]
    path = tmp_path / "test.yml"
    content = {"rule_files": [str(CONFIGURATION / "rules.yml")], "evaluation_interval": "15s", "tests": tests}
    path.write_text(yaml.safe_dump(content))
    words = [str(BINARIES["promtool"]), "test", "rules", str(path)]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def samples(name: str) -> list[dict[str, object]]:
    """Returns what FIRING gives if this alert fires and no other; an empty name: none does."""
    return [{"labels": f'{{alertname="Pagewire{name}"}}', "value": 1}] if name else []


def test_all_processes_answer_and_no_alert_fires(watched: tuple[Topology, Prometheus]):
    _, prometheus = watched
    services.wait_until(lambda: prometheus.up() == {"frontend": 2, "engine": 1})
    calm = dict.fromkeys(alerts(), ("ok", "inactive"))
    services.wait_until(lambda: prometheus.rules() == calm)


async def traffic(service: Topology) -> None:
    """Streams that repeat themselves and are drafted, some with a wrong field, more than the queue takes; one
    breaks off since its frontend drains."""

    async def one(client: AsyncClient, number: int) -> None:
        params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=-float(number % 8 == 0))
        with contextlib.suppress(RpcError):
            async with client.stream(LIST, params) as stream:
                await stream.result()

    async with AsyncClient(service.addresses) as client, AsyncClient(service.addresses[0]) as admin:
        await one(client, 1)  # drafts of the first request are tried before it is known whether they pay
        async with client.stream([100], SamplingParams(max_tokens=900, ignore_eos=True)) as stream:
            await anext(aiter(stream))
            await admin.drain(end_after=0)
            await admin.resume()
        await asyncio.gather(*(one(client, number) for number in range(32)))


def test_every_panel_has_series(watched: tuple[Topology, Prometheus]):
    service, prometheus = watched

    def missing() -> list[tuple[str, str]]:
        return [panel for panel in panels() if not prometheus.query(panel[1])]

    def all_are_there() -> bool:
        asyncio.run(traffic(service))
        return not missing()

    with contextlib.suppress(AssertionError):
        services.wait_until(all_are_there)
    assert missing() == []


def test_the_first_request_that_kills_the_engine_is_an_alert():
    """A counter that begins with its first event has not increased yet."""
    engine = {"profile": "instant", "worker_fault": f"die-on-token={TRIGGER}"}
    with topology(1, engine=engine) as service, running(service) as prometheus:
        services.wait_until(lambda: prometheus.up() == {"frontend": 1, "engine": 1})
        with Client(service.addresses) as client, pytest.raises(InternalError):
            client.generate([100, TRIGGER, 101], max_tokens=4)
        firing = lambda: {name for name, (_, state) in prometheus.rules().items() if state == "firing"}  # noqa: E731
        services.wait_until(lambda: "PagewireQuarantine" in firing())
