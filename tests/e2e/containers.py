"""The image, and the services of compose.yaml as containers with all the options that it gives them.

An engine of containers that answers is used; where none does, root starts Debian's here. Base images come
from their registry; where that cannot be reached, Debian's archive has one with its own Python and nginx.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.services import ROOT, processes, wait_until
from tests.e2e.topology import compose, write_nginx

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
END_S = 60.0
FREE_BYTES = 10 << 30
"""Of the image, the layers on the way to it, and the system in place of its base."""
OPTIONS = {
    "user": "--user",
    "pids_limit": "--pids-limit",
    "mem_limit": "--memory",
    "restart": "--restart",
}
"""Keys of a service of Compose that are an option of `docker run` each."""
HEALTH = {
    "interval": "--health-interval",
    "timeout": "--health-timeout",
    "start_period": "--health-start-period",
}


class Docker:
    """The command line of one engine of containers."""

    def __init__(self, socket: str = "") -> None:
        """socket: empty for the engine that the environment names."""
        self._words = ["docker", *(["--host", f"unix://{socket}"] if socket else [])]
        self.bases: dict[str, str] = {}

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, whatever that is."""
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        return subprocess.run(
            [*self._words, *words], capture_output=True, text=True, env=environment, **options
        )

    def __call__(self, *words: str, **options: Any) -> str:
        """Returns what a command prints. Fails with what it says if it fails."""
        done = self.run(*words, **options)
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout.strip()

    def remove(self, *words: str) -> None:
        """Runs a command that removes something, or prints why it fails."""
        clean_up(*self._words, *words)

    def inspect(self, name: str) -> Any:
        """Returns the facts of a container or an image."""
        return json.loads(self("inspect", name))[0]

    def logs(self, name: str) -> str:
        """Returns what a container has written."""
        done = self.run("logs", name)
        return done.stdout + done.stderr

    def pids(self, name: str, command: str) -> list[int]:
        """Returns the pids on this host of `pagewire COMMAND` in a container, the oldest first."""
        table = self("top", name, "-eo", "pid,args", "--sort=start_time").splitlines()[1:]
        rows = [row.split(maxsplit=1) for row in table]
        return [int(pid) for pid, words in rows if f" -m pagewire {command} " in f"{words} "]

    def address(self, name: str, port: int) -> str:
        """Returns where this host reaches a port of a container."""
        return self("port", name, str(port)).splitlines()[0]


@contextlib.contextmanager
def engine() -> Iterator[Docker]:
    """An engine of containers. Skips the test, with the reason, where none can be had."""
    if os.geteuid() != 0 or shutil.which("docker") is None:
        pytest.skip("needs root, and Docker's command line")
    found = Docker()
    if found.run("info").returncode == 0:
        yield found
        return
    if missing := [name for name in ("dockerd", "iptables") if shutil.which(name) is None]:
        pytest.skip(
            f"no engine of containers answers, and {', '.join(missing)} is not installed to start one"
        )
    if shutil.disk_usage("/tmp").free < FREE_BYTES:
        pytest.skip("images and layers need 10 GB in /tmp")
    with tempfile.TemporaryDirectory(prefix="pw-docker-", dir="/tmp") as folder, daemon(folder) as started:
        yield started


@contextlib.contextmanager
def daemon(folder: str) -> Iterator[Docker]:
    """An engine of containers in a folder. No process, mount or rule of it is left on the host afterwards,
    whether it ends in order, hangs or is killed."""
    paths = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    # A network that is made has a bridge; none is made beside. Frames within a bridge need no forwarding.
    network = ["--bridge=none", "--ip-forward=false"]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(Path(folder, "log").open("wb"))
        for command in ("iptables", "ip6tables"):
            stack.callback(restore_rules, command, read_rules(command))
        # What it mounts is gone with it.
        process = subprocess.Popen(
            ["unshare", "--mount", "dockerd", *paths, *network, f"--host=unix://{folder}/sock"],
            stdout=log,
            stderr=log,
        )
        stack.callback(end, process, folder)
        docker = Docker(f"{folder}/sock")
        wait_until(lambda: process.poll() is not None or docker.run("info").returncode == 0)
        if process.poll() is not None:
            pytest.skip("dockerd does not run here: " + Path(folder, "log").read_text()[-300:])
        yield docker


def end(process: "subprocess.Popen[bytes]", folder: str) -> None:
    """Ends a daemon, and kills what it leaves when it does not end in order: shims, which have its folder in
    their command lines, and the processes of containers below them."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    everything = map(int, filter(str.isdecimal, os.listdir("/proc")))
    left = [pid for pid in everything if folder in command_line(pid)]
    kill([*left, *(pid for each in left for pid in descendants(each))])
    process.wait(END_S)


def descendants(pid: int) -> list[int]:
    """Returns the living descendants of a process."""
    return [each for pids in processes(pid).values() for each in pids]


def kill(pids: Sequence[int]) -> None:
    """Kills processes, some of which may have ended, and waits until they are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as process:
            signal.pidfd_send_signal(process.fileno(), signal.SIGKILL)
            select.select([process], [], [], END_S)


def command_line(pid: int) -> str:
    """Returns the words of a process, or nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def read_rules(command: str) -> dict[str, str]:
    """Returns the tables of iptables or ip6tables, as text for restore_rules()."""
    saved = subprocess.run([f"{command}-save"], capture_output=True, text=True, check=False).stdout
    return {
        table[1]: table[0] for table in re.finditer(r"^\*(\w+)$.*?^COMMIT\n", saved, re.MULTILINE | re.DOTALL)
    }


def restore_rules(command: str, tables: Mapping[str, str]) -> None:
    """Gives all tables of iptables or ip6tables the rules that they had; one that is new becomes empty."""
    text = "".join(tables.get(table, f"*{table}\nCOMMIT\n") for table in read_rules(command))
    clean_up(f"{command}-restore", input=text)


def clean_up(*words: str, **options: Any) -> None:
    """Runs a command. One that fails is printed: it says nothing about a test."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        print(f"{' '.join(words)}: {done.stdout}{done.stderr}")


@contextlib.contextmanager
def network(docker: Docker, name: str) -> Iterator[str]:
    """A network, with a bridge of its name, which is removed even when the engine has been killed."""
    bridge = f"com.docker.network.bridge.name={name}"
    try:
        docker("network", "create", "--opt", bridge, name)
        yield name
    finally:
        docker.remove("network", "rm", name)
        if Path("/sys/class/net", name).exists():
            clean_up("ip", "link", "delete", name)


def base(docker: Docker, image: str) -> str:
    """Returns an image, or the system in its place where its registry cannot be reached."""
    if image not in docker.bases:
        reached = docker.run("pull", "--quiet", image).returncode == 0
        docker.bases[image] = image if reached else stand_in(docker)
    return docker.bases[image]


def stand_in(docker: Docker) -> str:
    """Returns an image of this host's Debian from its archive, with Python, nginx and pip's configuration."""
    name = "pagewire-test-base"
    if docker("images", "--quiet", name):
        return name
    if shutil.which("debootstrap") is None:
        pytest.skip("no registry of images can be reached, and debootstrap is not installed to make one")
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    listed = subprocess.run(targets, capture_output=True, text=True, check=True).stdout.splitlines()
    mirror, suite = listed[0].split()
    with tempfile.TemporaryDirectory(prefix="pw-base-", dir="/tmp") as folder:
        packages = "python3,python3-venv,ca-certificates,nginx-light,prometheus"
        debootstrap(suite, folder, mirror, packages)
        # A volume that is mounted there gets its owner, as in the image of Prometheus.
        Path(folder, "prometheus").mkdir()
        os.chown(f"{folder}/prometheus", 65534, 65534)
        Path(folder, "usr/bin/python").symlink_to("python3")
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", f"{folder}/etc/ssl/certs/")
        shutil.copytree("/etc/apt/apt.conf.d", f"{folder}/etc/apt/apt.conf.d", dirs_exist_ok=True)
        wheels = os.environ.get("PIP_FIND_LINKS", "")
        if wheels and Path(wheels).is_dir():
            shutil.copytree(wheels, f"{folder}{wheels}")
        pip = " ".join(f"{key}={value}" for key, value in os.environ.items() if key.startswith("PIP_"))
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as archive:
            docker("import", "--change", f"ENV {path} {pip}", "-", name, stdin=archive.stdout)
    return name


def debootstrap(suite: str, folder: str, mirror: str, packages: str) -> None:
    """Installs a Debian in a folder, or fails with what debootstrap says. Namespaces end its mounts and its
    children with it."""
    words = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "debootstrap", "--variant=minbase"]
    words += [f"--include={packages}", suite, folder, mirror]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            kill(descendants(process.pid))
            raise
    assert process.returncode == 0, output[-4000:]


def build(docker: Docker) -> str:
    """Builds the image from this tree. Returns its name."""
    name = "pagewire-test"
    (python,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    given = [f"PYTHON_IMAGE={base(docker, python)}", f"TORCH_INDEX={os.environ.get('TORCH_INDEX', '')}"]
    arguments = [word for each in given for word in ("--build-arg", each)]
    docker("build", "--network=host", *arguments, "--file", str(DOCKERFILE), "--tag", name, str(ROOT))
    return name


class Stack:
    """The services of compose.yaml in one network. Everything is removed with the context."""

    def __init__(self, docker: Docker, image: str, folder: Path) -> None:
        """image: in place of ours. folder: for what containers mount, which others can read."""
        self.docker, self._image, self._folder = docker, image, folder
        self.project = f"pw-{os.getpid()}"
        self._made = contextlib.ExitStack()

    def __enter__(self) -> "Stack":
        with contextlib.ExitStack() as made:
            self._made = made
            made.enter_context(network(self.docker, self.project))
            for volume, spec in compose()["volumes"].items():
                self.make_volume(volume, (spec or {}).get("driver_opts", {}))
            self._made = made.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()

    def name(self, part: str) -> str:
        """Returns the name of a container or volume in the engine."""
        return f"{self.project}-{part}"

    def make_volume(self, volume: str, options: Mapping[str, str]) -> str:
        """Makes a volume; options: of Docker's own driver. Returns its name in the engine."""
        words = [word for key, value in options.items() for word in ("--opt", f"{key}={value}")]
        self._made.callback(self.docker.remove, "volume", "rm", "--force", self.name(volume))
        return self.docker("volume", "create", *words, self.name(volume))

    def start(self, service: str, name: str, *, publish: Sequence[int] = (), **changes: Any) -> str:
        """Starts a container of a service; publish: ports for this host. changes: of the service's keys."""
        spec = compose()["services"][service]
        ours = {"image": self._image} if spec["image"].startswith("pagewire:") else {}
        spec = {**spec, **ours, **changes}
        aliases = [f"--network-alias={each}" for each in {service, name}]
        words = [*aliases, *(word for port in publish for word in ("-p", f"127.0.0.1::{port}"))]
        container = self.name(name)
        self._made.callback(self.docker.remove, "rm", "--force", "--volumes", container)
        options = [*self._options(spec), *words, "--network", self.project, "--name", container]
        entrypoint, *arguments = [*spec.get("entrypoint", [""]), *map(substitute, spec.get("command", []))]
        options += ["--entrypoint", entrypoint] if entrypoint else []
        self.docker("run", "--detach", *options, spec["image"], *arguments)
        return container

    def wait_healthy(self, container: str) -> None:
        """Waits until the engine of containers says that it is, by the service's own check."""
        wait_until(lambda: self.docker.inspect(container)["State"]["Health"]["Status"] == "healthy")

    def _options(self, spec: Mapping[str, Any]) -> list[str]:
        words: list[str] = ["--read-only"] if spec["read_only"] else []
        for key, value in spec.items():
            match key:
                case _ if key in OPTIONS:
                    words += [OPTIONS[key], str(value)]
                case "cap_drop" | "security_opt":
                    words += [word for each in value for word in (f"--{key.replace('_', '-')}", each)]
                case "tmpfs":
                    words += [word for each in value for word in ("--tmpfs", each)]
                case "volumes":
                    words += [word for each in value for word in ("--volume", self._mount(each))]
                case "stop_grace_period":
                    words += ["--stop-timeout", value.removesuffix("s")]
                case "logging":
                    words += ["--log-driver", value["driver"]]
                    words += [w for k, v in value["options"].items() for w in ("--log-opt", f"{k}={v}")]
                case "healthcheck":
                    words += ["--health-cmd", " ".join(value["test"][1:])]
                    words += [
                        word for k, option in HEALTH.items() if k in value for word in (option, value[k])
                    ]
                case "read_only" | "image" | "build" | "command" | "entrypoint" | "ports" | "profiles":
                    pass  # start() has them
                case _:
                    raise AssertionError(f"compose.yaml has {key}, which this test does not know")
        return words

    def _mount(self, volume: str) -> str:
        source, _, target = substitute(volume).partition(":")
        if source in compose()["volumes"]:
            return f"{self.name(source)}:{target}"
        if source == "./models":
            (self._folder / "models").mkdir(exist_ok=True)
            return f"{self._folder}/models:{target}"
        return f"{ROOT / source if source.startswith('.') else source}:{target}"

    def start_balancer(self, frontends: Sequence[str]) -> str:
        """Starts nginx in front of frontends; returns the container. The stand-in's is older than the one in
        compose.yaml, and gets the places of its version, as in the tests without containers."""
        spec = compose()["services"]["lb"]
        ports = (50051, 8000)
        image = base(self.docker, spec["image"])
        if image == spec["image"]:
            return self.start("lb", "lb", publish=ports)
        servers = ["".join(f"server {each}:{port} max_fails=0;\n" for each in frontends) for port in ports]
        places = {"listen": "listen 50051 http2;\n", "listen-http": "listen 8000;\n"}
        places |= {"upstream": servers[0], "upstream-http": servers[1], "alive": "listen 127.0.0.1:8080;\n"}
        folder = write_nginx(self._folder / "nginx", places)
        mounts = [f"{folder}:/etc/pagewire:ro"]
        changes = {"image": image, "volumes": mounts, "healthcheck": without_wget(spec["healthcheck"])}
        return self.start("lb", "lb", publish=ports, **changes)

    def start_prometheus(self) -> str:
        """Starts Prometheus with its configuration, rules and volume; returns the container."""
        spec = compose()["services"]["prometheus"]
        image = base(self.docker, spec["image"])
        changes: dict[str, Any] = {"image": image}
        if image != spec["image"]:
            changes |= {"entrypoint": ["prometheus"], "healthcheck": without_wget(spec["healthcheck"])}
        return self.start("prometheus", "prometheus", publish=[9090], **changes)


def without_wget(check: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a check of a URL by Python, which the system in place of a base image has."""
    words = f"import urllib.request; urllib.request.urlopen('{check['test'][-1]}')"
    return {**check, "test": ["CMD", "python", "-c", f'"{words}"']}


def substitute(text: str) -> str:
    """Returns a text as Compose reads it without an environment: ${NAME:-default} is its default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
