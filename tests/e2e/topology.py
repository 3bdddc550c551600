"""The services of compose.yaml as processes of this user on the loopback address.

The same commands and flags, and nginx with the same configuration. What differs: addresses, paths, the
device, and whatever a test says.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from pagewire import Client
from tests.e2e.services import PATIENCE_S, ROOT, wait_until
from tests.free_ports import free_ports

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
CONFIGURATION = ROOT / "deploy" / "nginx"


def compose() -> dict[str, Any]:
    """compose.yaml, as it is parsed."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return content


def command(service: str, changes: Mapping[str, object]) -> list[str]:
    """A service's command with other values for some of its flags, and more flags."""
    name, *words = compose()["services"][service]["command"]
    flags = dict(word.removeprefix("--").split("=", 1) for word in words)
    flags |= {flag.replace("_", "-"): str(value) for flag, value in changes.items()}
    return [name, *(f"--{flag}={value}" for flag, value in flags.items())]


class Topology:
    """An engine core, frontends, and nginx before them. Everything ends with the context."""

    def __init__(
        self, folder: Path, num_frontends: int, engine: Mapping[str, object], **changes: object
    ) -> None:
        """folder: for sockets; its path is short. engine: flags of the engine; changes: of the frontends."""
        self.folder = folder
        self.ports = free_ports(num_frontends)
        self.http_ports = free_ports(num_frontends)
        self.port, self.http_port, self._alive_port = free_ports(3)
        self._engine_metrics_port, *self._metrics_ports = free_ports(1 + num_frontends)
        self._engine_changes, self._frontend_changes = engine, changes
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Address of the balancer."""
        return f"127.0.0.1:{self.port}"

    @property
    def addresses(self) -> list[str]:
        """Addresses of the frontends."""
        return [f"127.0.0.1:{port}" for port in self.ports]

    def metrics_addresses(self, service: str) -> list[str]:
        """Returns where Prometheus reads the "engine", or every "frontend"."""
        ports = [self._engine_metrics_port] if service == "engine" else self._metrics_ports
        return [f"127.0.0.1:{port}" for port in ports]

    def __enter__(self) -> "Topology":
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            self._start("engine", self._pagewire("engine", self._engine_flags()))
            for number in range(len(self.ports)):
                self.start_frontend(number)
            for number in range(len(self.ports)):
                self.wait_ready(number)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def start_balancer(self) -> None:
        """nginx, until it listens. What it says of servers that are gone is in a file."""
        command = nginx_command(self.nginx_folder(), "daemon off;")
        with (self.folder / "nginx.log").open("wb") as log:
            self._start("nginx", command, stderr=log)

        def listens() -> bool:
            assert self._processes["nginx"].poll() is None, (self.folder / "nginx.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return True
            return False

        wait_until(listens)

    def nginx_folder(self) -> Path:
        """The configuration of deploy/nginx, with this topology's places."""
        http2 = nginx_version() >= (1, 25, 1)
        listen = f"listen 127.0.0.1:{self.port}" + (";\nhttp2 on;\n" if http2 else " http2;\n")
        servers = "".join(f"server {address} max_fails=0;\n" for address in self.addresses)
        http = "".join(f"server 127.0.0.1:{port} max_fails=0;\n" for port in self.http_ports)
        return write_nginx(
            self.folder / "nginx",
            {
                "listen": listen,
                "upstream": servers,
                "listen-http": f"listen 127.0.0.1:{self.http_port};\n",
                "upstream-http": http,
                "alive": f"listen 127.0.0.1:{self._alive_port};\n",
            },
        )

    def start_frontend(self, number: int) -> None:
        """On its own port, like a container that has its own address."""
        changes = {
            "host": "127.0.0.1",
            "port": self.ports[number],
            "openai_host": "127.0.0.1",
            "openai_port": self.http_ports[number],
            "http_port": self._metrics_ports[number],
            "engine": f"ipc://{self.folder}/f.ipc",
        }
        words = self._pagewire("frontend", changes | self._frontend_changes)
        self._start(f"frontend {number}", words)

    def wait_ready(self, number: int) -> None:
        """Waits until health is SERVING."""
        with Client(self.addresses[number]) as client:
            client.wait_ready(PATIENCE_S)

    def signal(self, name: str, number: int = signal.SIGTERM) -> None:
        """To "engine", "nginx" or "frontend N"."""
        self._processes[name].send_signal(number)

    def wait_end(self, name: str) -> int:
        """Its exit code."""
        return self._processes.pop(name).wait(PATIENCE_S)

    def restart_frontend(self, number: int) -> int:
        """As a rolling update does it; returns the exit code of the old one when the new one is ready."""
        self.signal(f"frontend {number}")
        code = self.wait_end(f"frontend {number}")
        self.start_frontend(number)
        self.wait_ready(number)
        return code

    def _engine_flags(self) -> dict[str, object]:
        here = {"listen": f"ipc://{self.folder}/f.ipc", "device": "simulated", "standbys": 0}
        here["http_port"] = self._engine_metrics_port
        return here | self._engine_changes

    def _pagewire(self, service: str, changes: Mapping[str, object]) -> list[str]:
        here = {"model": "demo", "log_level": "error", "http_host": "127.0.0.1"}
        words = command(service, {**here, **changes})
        return [sys.executable, "-P", "-m", "pagewire", *words]

    def _start(self, name: str, words: list[str], **options: Any) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PAGEWIRE_")}
        self._processes[name] = subprocess.Popen(
            words, env={**environment, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, **options
        )

    def _end(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def topology(
    num_frontends: int = 3, *, engine: Mapping[str, object] = MappingProxyType({}), **changes: object
) -> Iterator[Topology]:
    """A running one, in a folder with a short name."""
    with (
        tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as folder,
        Topology(Path(folder), num_frontends, engine, **changes) as running,
    ):
        yield running


def write_nginx(folder: Path, places: Mapping[str, str]) -> Path:
    """nginx.conf as it is, beside other places to listen and other frontends: files NAME.conf."""
    (folder / "prefix").mkdir(parents=True, exist_ok=True)
    shutil.copy(CONFIGURATION / "nginx.conf", folder)
    for name, text in places.items():
        (folder / f"{name}.conf").write_text(text)
    return folder


def nginx_command(folder: Path, *directives: str) -> list[str]:
    """As the entry point of the service `lb`, for a folder of write_nginx()."""
    assert NGINX is not None
    words = [NGINX, "-e", "stderr", "-p", f"{folder}/prefix/", "-c", f"{folder}/nginx.conf"]
    return [*words, *(word for directive in directives for word in ("-g", directive))]


def nginx_version() -> tuple[int, ...]:
    """Such as (1, 22, 1)."""
    assert NGINX is not None
    said = subprocess.run([NGINX, "-v"], capture_output=True, text=True, check=True).stderr
    return tuple(int(part) for part in said.split("/")[1].split()[0].split("."))
