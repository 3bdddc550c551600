"""What smg is started with, and when. tests/e2e/test_gateway.py runs it."""

import os
import signal
import sys

import pytest

from pagewire.cli import extras
from pagewire.config import GatewayConfig, ServeConfig
from pagewire.errors import StartupError
from pagewire.flags import UsageError
from pagewire_gateways import smg_process as gateway
from tests.free_ports import free_ports


def test_smg_listens_on_the_loopback_address_alone():
    config = GatewayConfig(port=7, backend=("127.0.0.1:1", "127.0.0.1:2"), shutdown_grace=1.5)
    arguments = gateway.smg_arguments(config, 9)
    assert {"--host=127.0.0.1", "--port=7", "--prometheus-host=127.0.0.1", "--prometheus-port=9"} < {
        *arguments
    }
    assert "--shutdown-grace-period-secs=2" in arguments and "--log-level=warn" in arguments
    assert arguments[arguments.index("--worker-urls") + 1 :] == ["grpc://127.0.0.1:1", "grpc://127.0.0.1:2"]


def test_smg_is_not_started_before_a_frontend_serves(monkeypatch):
    """It would register a service whose model it does not know."""
    answers = [False, False, True]
    monkeypatch.setattr(gateway, "_is_healthy", lambda channel: answers.pop(0))
    monkeypatch.setattr(gateway.signal, "signal", lambda number, handler: None)  # those of pytest stay
    monkeypatch.setattr(gateway, "_LOOK_S", 0.0)

    def start(self):
        assert not answers
        raise StartupError("started")

    monkeypatch.setattr(gateway.Gateway, "_start", start)
    with pytest.raises(StartupError, match="started"):
        gateway.Gateway(GatewayConfig()).run()


def test_smg_that_ends_by_itself_is_an_error_with_its_cause(monkeypatch):
    monkeypatch.setattr(gateway.signal, "signal", lambda number, handler: None)  # those of pytest stay
    monkeypatch.setattr(gateway, "_is_healthy", lambda channel: True)
    monkeypatch.setattr(gateway, "smg_arguments", lambda config, port: ["no-such-command"])
    with pytest.raises(StartupError) as ended:
        gateway.Gateway(GatewayConfig()).run()
    assert (ended.value.what, ended.value.why) == ("smg has ended", "it ended with exit code 1")


@pytest.mark.parametrize(("end", "from_outside"), [("sys.exit(3)", False), ("os.kill(os.getpid(), 9)", True)])
def test_smg_that_crashes_while_it_serves_counts_as_a_death(end, from_outside, monkeypatch):
    """Only SIGKILL comes from outside; a smg that crashed at each start was started for ever."""
    started = []
    monkeypatch.setattr(gateway.signal, "signal", lambda number, handler: None)  # those of pytest stay
    monkeypatch.setattr(gateway, "_is_healthy", lambda channel: True)
    popen = gateway.subprocess.Popen

    def start(command, **options):
        program = f"import os, sys\nsys.stdin.readline()\n{end}"
        started.append(
            popen([sys.executable, "-c", program], **{**options, "stdin": gateway.subprocess.PIPE})
        )
        return started[-1]

    def ready(status, **facts):
        started[0].stdin.close()

    monkeypatch.setattr(gateway.subprocess, "Popen", start)
    monkeypatch.setattr(gateway, "serves", lambda host, port: True)
    monkeypatch.setattr(gateway.process.Status, "ready", ready)
    with pytest.raises(StartupError) as ended:
        gateway.Gateway(GatewayConfig(hang_timeout=0)).run()
    assert (ended.value.what, ended.value.may_pass) == ("smg has ended", from_outside)


SERVES_ONE_MODEL = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "demo"}]}')

    def log_message(self, *words): ...

http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


def test_smg_that_no_longer_answers_is_killed(monkeypatch):
    """SIGSTOP: the kernel still accepts connections for it."""
    started = []
    monkeypatch.setattr(gateway.signal, "signal", lambda number, handler: None)  # those of pytest stay
    monkeypatch.setattr(gateway, "_is_healthy", lambda channel: True)
    popen = gateway.subprocess.Popen

    def start(command, **options):
        port = next(word for word in command if word.startswith("--port=")).removeprefix("--port=")
        started.append(popen([sys.executable, "-c", SERVES_ONE_MODEL, port], **options))
        return started[-1]

    monkeypatch.setattr(gateway.subprocess, "Popen", start)
    monkeypatch.setattr(
        gateway.process.Status, "ready", lambda status, **facts: os.kill(started[0].pid, signal.SIGSTOP)
    )
    (port,) = free_ports(1)
    config = GatewayConfig(port=port, hang_timeout=0.5)
    with pytest.raises(StartupError) as ended:
        gateway.Gateway(config).run()
    assert ended.value.what == "smg hangs" and not ended.value.may_pass
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("field", "flag"), [("auth_file", "--auth-file"), ("tls_client_ca", "--tls-client-ca")]
)
def test_a_service_that_smg_could_not_call_is_refused_by_name(monkeypatch, field, flag):
    monkeypatch.setattr(gateway, "require", lambda *arguments: None)
    gateway.check(ServeConfig(gateway=0))
    with pytest.raises(UsageError) as refused:
        gateway.check(ServeConfig(gateway=0, **{field: "x"}))
    assert flag in refused.value.what


def test_a_gateway_that_is_not_installed_is_refused_with_the_extras_name(monkeypatch):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(StartupError) as refused:
        gateway.check(ServeConfig(gateway=0))
    assert refused.value.why == "smg is not installed" and "gateway" in refused.value.todo
