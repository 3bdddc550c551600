"""`pagewire gateway`, which `serve --gateway` starts: smg, a gateway of others (docs/gateways.md).

smg is another program. A process of ours stands between it and the supervisor: it starts smg, asks it
over HTTP, reports when it serves the model, and ends when smg does, or when smg no longer answers, so that
the supervisor restarts it like everything else.
"""

import contextlib
import errno
import http.client
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from types import FrameType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagewire import logs
from pagewire.cli.extras import require
from pagewire.config import GatewayConfig, ServeConfig
from pagewire.errors import StartupError
from pagewire.flags import UsageError
from pagewire.host import spawn as process
from pagewire.host.addresses import reserve_port
from pagewire.host.liveness import AwakeTime, Liveness
from pagewire.host.proc_stat import describe_exit, read_vitals

log = logging.getLogger(__name__)

CONFIG = GatewayConfig
LOOPBACK = "127.0.0.1"

_LOOK_S = 0.25
"""Seconds between two looks at smg, each with a heartbeat."""
_ANSWER_S = 2.0
"""Seconds that a frontend, or smg, may take for one answer."""
_PAUSE_S = 0.5
"""Seconds between two questions whether smg still answers."""
_EXTRA_GRACE_S = 1.0
_LEVELS = {"debug": "debug", "info": "warn", "warning": "warn", "error": "error"}
"""--log-level in smg's words: its lines of level info are many."""


def run(config: GatewayConfig) -> int:
    """Runs smg until a signal; returns the exit code. Raises StartupError."""
    logs.setup(config.process_name or "gateway", config.log_level, config.log_format)
    require("gateway", "start a gateway (smg)")
    return Gateway(config).run()


def check(config: ServeConfig) -> None:
    """Raises StartupError without smg, and UsageError, which names the flag, where smg could not reach the
    frontends."""
    require("gateway", "start a gateway (smg)")
    for flag, given, why in (
        ("--api-key", config.api_key, "smg sends no tokens to the services behind it"),
        ("--auth-file", config.auth_file, "smg sends no tokens to the services behind it"),
        ("--tls-client-ca", config.tls_client_ca, "connections of smg have no client certificate"),
    ):
        if given:
            raise UsageError(
                f"--gateway cannot be combined with {flag}",
                why,
                "use --openai-port, which checks tokens and certificates itself",
            )


class Gateway:
    """smg as a child of this process."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._status = process.Status()
        self._heartbeat = process.Heartbeat(self._status.beat)
        self._probe = SmgProbe(LOOPBACK, config.port)
        self._liveness = Liveness()
        self._stops = False

    def run(self) -> int:
        """Returns 0 after a signal. Raises StartupError when smg ends by itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        if not self._wait_for_backends():
            return 0
        smg = self._start()
        try:
            self._watch(smg)
        finally:
            self._probe.close()
            smg.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                smg.wait(self._config.shutdown_grace + _EXTRA_GRACE_S)
            smg.kill()
            smg.wait()
        return 0

    def _wait_for_backends(self) -> bool:
        """Waits until all frontends serve: smg asks each one once which model it has. Returns False after a
        signal."""
        for backend in self._config.backend:
            with grpc.insecure_channel(backend) as channel:
                while not self._stops and not _is_healthy(channel):
                    self._heartbeat()
                    time.sleep(_LOOK_S)
        return not self._stops

    def _start(self) -> "subprocess.Popen[bytes]":
        with reserve_port(LOOPBACK, 0) as metrics:
            arguments = smg_arguments(self._config, metrics.getsockname()[1])
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "smg", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # standard output has the ready line
                env=process.child_environment(),
                preexec_fn=partial(process.die_with, os.getpid(), signal.SIGKILL),
            )
        except OSError as error:
            passes = error.errno in (errno.EAGAIN, errno.ENOMEM)
            raise StartupError("cannot start smg", error.strerror or str(error), may_pass=passes) from error

    def _watch(self, smg: "subprocess.Popen[bytes]") -> None:
        """Returns after a signal. Raises StartupError when smg ends or hangs."""
        is_ready, awake = False, AwakeTime(time.monotonic())
        while not self._stops:
            self._heartbeat()
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = smg.wait(_LOOK_S)
                was_killed = is_ready and code == -signal.SIGKILL
                why = describe_exit(code)
                raise StartupError("smg has ended", why, "see the lines above", may_pass=was_killed)
            awake_s = awake.passed(time.monotonic(), _LOOK_S)
            if is_ready:
                self._check_answers(smg, awake_s)
            elif serves(LOOPBACK, self._config.port):
                is_ready = True
                self._probe.start()
                self._status.ready(gateway=f"http://{LOOPBACK}:{self._config.port}")
                log.info("smg listens on http://%s:%d", LOOPBACK, self._config.port)

    def _check_answers(self, smg: "subprocess.Popen[bytes]", awake_s: float) -> None:
        """Raises StartupError, and kills smg, when it has not answered for too long."""
        if self._probe.take_answer():
            self._liveness.heard()
        patience = self._config.hang_timeout
        if patience and self._liveness.hangs(awake_s, read_vitals(smg.pid), patience, starts=False):
            smg.kill()
            why = f"it has not answered for {self._liveness.silent_s:.1f} s, and was killed"
            raise StartupError("smg hangs", why, "if it was only slow, raise --hang-timeout")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stops = True


def smg_arguments(config: GatewayConfig, metrics_port: int) -> list[str]:
    """Returns smg's command line. metrics_port: a free one for its own metrics."""
    arguments = [
        "launch",
        f"--host={LOOPBACK}",
        f"--port={config.port}",
        f"--prometheus-host={LOOPBACK}",
        f"--prometheus-port={metrics_port}",
        f"--shutdown-grace-period-secs={math.ceil(config.shutdown_grace)}",
        f"--log-level={_LEVELS[config.log_level]}",
        "--worker-urls",
        *(f"grpc://{backend}" for backend in config.backend),
    ]
    return [*arguments, "--log-json"] if logs.writes_json() else arguments


def _is_healthy(channel: grpc.Channel) -> bool:
    check = health_pb2_grpc.HealthStub(channel).Check
    try:
        status = check(health_pb2.HealthCheckRequest(), timeout=_ANSWER_S).status
    except grpc.RpcError:
        return False
    return bool(status == health_pb2.HealthCheckResponse.SERVING)


def serves(host: str, port: int) -> bool:
    """Returns whether smg knows a model, which it learns from the first frontend that it reaches."""
    status, body = _get(host, port, "/v1/models")
    try:
        content = json.loads(body)
    except ValueError:
        return False
    return status == http.HTTPStatus.OK and isinstance(content, dict) and bool(content.get("data"))


def _get(host: str, port: int, path: str) -> tuple[int, bytes]:
    """Returns status and body of a page of smg; 0 and nothing where it does not answer."""
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=_ANSWER_S)) as connection:
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""


class SmgProbe:
    """Asks again and again from start() to close(), in a thread: an answer that does not come blocks."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._answered = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smg-probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Lets the thread end; it may still wait for an answer."""
        self._closed.set()

    def take_answer(self) -> bool:
        """Returns whether smg has answered since the last call."""
        answered = self._answered.is_set()
        self._answered.clear()
        return answered

    def _run(self) -> None:
        while not self._closed.wait(_PAUSE_S):
            if self._answers():
                self._answered.set()

    def _answers(self) -> bool:
        """Any status counts: smg answers 503 where no frontend is left."""
        return bool(_get(self._host, self._port, "/liveness")[0])
