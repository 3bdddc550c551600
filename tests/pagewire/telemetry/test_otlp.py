"""Resources of exported spans: named by OpenTelemetry's own variables, where these are set."""

from contextlib import closing

import pytest

from pagewire import __version__

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")

from pagewire.telemetry.otlp import OtlpTracer  # noqa: E402


def resource(monkeypatch: pytest.MonkeyPatch, **variables: str) -> dict[str, object]:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with closing(OtlpTracer("http://127.0.0.1:1", 1.0, "frontend-1")) as tracer:
        return dict(tracer._provider.resource.attributes)


def test_by_default_the_service_is_pagewire(monkeypatch: pytest.MonkeyPatch):
    found = resource(monkeypatch)
    assert (found["service.name"], found["service.version"]) == ("pagewire", __version__)
    assert found["service.instance.id"] == "frontend-1"


def test_the_variables_of_opentelemetry_win(monkeypatch: pytest.MonkeyPatch):
    found = resource(
        monkeypatch, OTEL_SERVICE_NAME="chat", OTEL_RESOURCE_ATTRIBUTES="team=a,service.instance.id=x"
    )
    assert (found["service.name"], found["team"], found["service.instance.id"]) == ("chat", "a", "x")
    found = resource(monkeypatch, OTEL_RESOURCE_ATTRIBUTES="service.name=search")
    assert found["service.name"] == "search"
