"""What the HTTP port has beside its plug-ins: health and metrics."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frontend import server
from frontend.auth.tokens import add_line, digest_of, entry_line
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from tests.frontend.http.test_server import Run, run

__all__ = ["run"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_ping_is_health_under_sagemakers_name(run: Run, method: str):
    async with run() as (service, client):
        assert (await client.request(method, "/ping")).status_code == 200
        service.frontend.state.drain()
        assert (await client.request(method, "/ping")).status_code == 503


@pytest.mark.parametrize("path", ["/metrics/", "/ping/"])
async def test_no_redirect_comes_before_the_checks(run: Run, path: str):
    """It would name the request's Host."""
    async with run() as (_, client):
        assert (await client.get(path, headers={"Host": "elsewhere.example"})).status_code == 404


async def test_metrics_are_those_of_the_metrics_port(run: Run):
    async with run(http_port=0) as (service, client):
        answer = await client.get("/metrics")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
        assert 'pagewire_frontend_serving{process="frontend"} 1.0' in answer.text
        openmetrics = await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
        assert openmetrics.text.endswith("# EOF\n")


async def test_metrics_have_the_processes_of_the_same_supervisor(run: Run, tmp_path: Path):
    """Several frontends share a port: whichever answers, all are there, each once."""
    name = str(tmp_path / "frontend-1.http")
    async with run(http_socket=name, process_name="frontend-1") as (_, client):
        second = str(tmp_path / "frontend-2.http")
        async with run(http_socket=second, process_name="frontend-2") as _:
            lines = (await client.get("/metrics")).text.splitlines()
            for process in ("frontend-1", "frontend-2"):
                assert lines.count(f'pagewire_frontend_serving{{process="{process}"}} 1.0') == 1


async def test_metrics_need_the_token_of_an_admin(run: Run, tmp_path: Path):
    """They have the names of tenants; health has not, and needs none."""
    tokens = tmp_path / "tokens.yaml"
    text = add_line("", entry_line(digest_of("alices"), "alice", {}))
    tokens.write_text(add_line(text, entry_line(digest_of("ops"), "ops", {"role": "admin"})))
    async with run(auth_file=str(tokens)) as (_, client):
        for token, status in (("unknown", 401), ("alices", 403), ("ops", 200)):
            headers = {"authorization": f"Bearer {token}"}
            assert (await client.get("/metrics", headers=headers)).status_code == status
        assert (await client.get("/ping")).status_code == 200


def test_a_port_without_the_api_is_refused(monkeypatch: pytest.MonkeyPatch):
    """An installation that is older than its source tree lacks the entry point."""
    monkeypatch.setattr("pagewire.plugins.plugins", lambda group: {})
    parts: Any = SimpleNamespace(config=FrontendConfig(openai_port=0))
    with pytest.raises(StartupError, match="openai"):
        server._make_http_port(parts, None, None, None)
