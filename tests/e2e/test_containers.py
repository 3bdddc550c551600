"""The image is built, and serves: one container alone, and the services of compose.yaml, whose processes are
killed under streams."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import tempfile
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagewire import AsyncClient, Client, SamplingParams
from pagewire_client.transport import recovery
from tests import patience
from tests.e2e import containers, services
from tests.e2e.prometheus import Prometheus, alerts, panels

pytestmark = pytest.mark.timeout(1200)  # a system is installed, an image built, and kernels are compiled

PARAMS = [
    SamplingParams(max_tokens=400, ignore_eos=True, seed=seed, temperature=seed / 2) for seed in range(4)
]
STRIKE_AT = 40
"""Tokens of the first stream."""


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Kernels are compiled for minutes on a busy machine; clients wait for a container that starts again."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (patience, services):
            patch.setattr(module, "PATIENCE_S", 600.0)
        patch.setattr(recovery, "PATIENCE_S", 300.0)
        yield


@pytest.fixture(scope="module")
def docker() -> Iterator[containers.Docker]:
    with containers.engine() as docker:
        yield docker


@pytest.fixture(scope="module")
def image(docker: containers.Docker) -> str:
    return containers.build(docker)


@pytest.fixture(scope="module")
def stack(docker: containers.Docker, image: str) -> Iterator[containers.Stack]:
    """An engine, two frontends and nginx."""
    with (
        tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as folder,
        containers.Stack(docker, image, Path(folder)) as stack,
    ):
        Path(folder).chmod(0o755)
        started = [stack.start("engine", "engine")]
        started += [stack.start("frontend", f"frontend-{number}", publish=(50051,)) for number in (1, 2)]
        for container in started:
            stack.wait_healthy(container)
        stack.wait_healthy(stack.start_balancer(["frontend-1", "frontend-2"]))
        yield stack


def test_the_image_says_what_it_is(docker: containers.Docker, image: str):
    """By labels of the Open Container Initiative; an ordinary user, and a check of its health."""
    project = tomllib.loads((services.ROOT / "pyproject.toml").read_text())["project"]
    facts = docker.inspect(image)["Config"]
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in facts["Labels"].items()}
    assert labels["version"] == project["version"] and labels["licenses"] == project["license"]
    assert labels["title"] == project["name"] and labels["description"]
    assert facts["User"] == "10001:10001" and facts["Healthcheck"]["Test"][:3] == [
        "CMD",
        "pagewire",
        "health",
    ]
    assert docker("run", "--rm", image, "version").split()[-1].startswith(project["version"])
    words = "import os; print(os.getuid(), os.access('/opt/pagewire', os.W_OK), os.access('/etc', os.W_OK))"
    assert docker("run", "--rm", "--entrypoint", "python", image, "-c", words) == "10001 False False"


def test_one_container_serves_everything(docker: containers.Docker, image: str):
    """By the line of docs/operations.md: gRPC, the OpenAI API and the console, until it is stopped."""
    page = (services.ROOT / "docs" / "operations.md").read_text()
    (line,) = re.findall(r"`docker (run -p 127\.0\.0\.1:8000:8000 [^`]+)`", page)
    pasted = line.replace("127.0.0.1:8000:", "127.0.0.1::").replace("MODEL", "demo")
    words = [image if word.startswith("pagewire:") else word for word in shlex.split(pasted)]
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(containers.network(docker, f"pw-{os.getpid()}"))
        container = f"{network}-alone"
        stack.callback(docker.remove, "rm", "--force", container)
        options = [f"--network={network}", f"--name={container}", "-p", "127.0.0.1::50051"]
        docker("run", "--detach", *options, *words[1:])
        health = lambda: docker.inspect(container)["State"]["Health"]["Status"]  # noqa: E731
        services.wait_until(lambda: health() == "healthy")
        base = f"http://{docker.address(container, 8000)}"
        assert ask(f"{base}/v1/models")["data"][0]["id"] == "demo"
        message = {"role": "user", "content": "What is the capital of Japan?"}
        answer = ask(f"{base}/v1/chat/completions", {"messages": [message], "temperature": 0})
        with Client(docker.address(container, 50051)) as client:
            expected = client.chat([message], temperature=0).text
        assert answer["choices"][0]["message"]["content"] == expected
        with urllib.request.urlopen(f"{base}/console/") as console:
            assert console.status == 200 and b"pagewire" in console.read()
        docker("stop", container)
        assert docker.inspect(container)["State"]["ExitCode"] == 0, docker.logs(container)


def ask(url: str, body: object = None) -> dict[str, list[dict[str, object]]]:
    """Returns the JSON that a URL answers."""
    data = None if body is None else json.dumps({"model": "demo", **body}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def streams(addresses: list[str], strike: Callable[[], None] = lambda: None) -> list[list[int]]:
    """Returns the tokens of all streams. strike: called once, in the middle of the first one."""

    async def one(client: AsyncClient, params: SamplingParams, strike: Callable[[], None]) -> list[int]:
        tokens: list[int] = []
        async with client.stream("The capital of France is", params) as stream:
            async for delta in stream:
                before = len(tokens)
                tokens += delta.token_ids
                if before < STRIKE_AT <= len(tokens):
                    await asyncio.to_thread(strike)
        return tokens

    async def all_of_them() -> list[list[int]]:
        async with AsyncClient(addresses) as client:
            strikes = [strike, *[lambda: None] * (len(PARAMS) - 1)]
            return list(await asyncio.gather(*map(one, [client] * len(PARAMS), PARAMS, strikes)))

    return asyncio.run(all_of_them())


def has_standby(stack: containers.Stack) -> bool:
    """Returns what the supervisor in the engine's container says."""
    words = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
    page = stack.docker("exec", stack.name("engine"), "python", "-c", words)
    return re.search(r"^pagewire_supervisor_standby_ready\b.* 1\.0$", page, re.MULTILINE) is not None


def serving(stack: containers.Stack, command: str) -> int:
    """Returns the process of the engine's container that is no standby."""
    (pid,) = (pid for pid in stack.docker.pids(stack.name("engine"), command) if not services.stands_by(pid))
    return pid


@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_a_standby_takes_over_in_the_container_of_the_engine(stack: containers.Stack, victim: str):
    """Streams go on through nginx, with the same tokens; the container is not started again."""
    services.wait_until(lambda: has_standby(stack))
    address = [stack.docker.address(stack.name("lb"), 50051)]
    expected = streams(address)
    started = stack.docker.inspect(stack.name("engine"))["State"]["StartedAt"]
    core, worker = (serving(stack, name) for name in ("engine", "worker"))
    killed = core if victim == "engine" else worker
    assert streams(address, lambda: os.kill(killed, signal.SIGKILL)) == expected
    assert serving(stack, "engine") != core
    # A worker is adopted when its core is killed; a core ends with its worker.
    assert (serving(stack, "worker") == worker) == (victim == "engine")
    assert stack.docker.inspect(stack.name("engine"))["State"]["StartedAt"] == started


def test_prometheus_reads_every_container(stack: containers.Stack):
    """It finds them by the names of services, loads its rules, and sees what was done."""
    container = stack.start_prometheus()
    stack.wait_healthy(container)
    prometheus = Prometheus(stack.docker.address(container, 9090))
    services.wait_until(lambda: prometheus.up() == {"frontend": 2, "engine": 1})
    streams([stack.docker.address(stack.name("lb"), 50051)])
    services.wait_until(lambda: {health for health, _ in prometheus.rules().values()} == {"ok"})
    assert prometheus.rules().keys() == alerts().keys()
    expressions = dict(panels())
    for title in ("Frontends that serve", "Requests", "First token", "Where a step's time goes"):
        services.wait_until(lambda expression=expressions[title]: bool(prometheus.query(expression)))


def test_frontends_come_and_go(stack: containers.Stack):
    """One more is started; another one is killed and starts again, and its streams go on elsewhere."""
    third = stack.start("frontend", "frontend-3", publish=(50051,))
    stack.wait_healthy(third)
    names = [stack.name(f"frontend-{number}") for number in (1, 2, 3)]
    addresses = [stack.docker.address(name, 50051) for name in names]
    expected = streams(addresses[2:])
    pid = stack.docker.inspect(names[0])["State"]["Pid"]
    assert streams(addresses, lambda: os.kill(pid, signal.SIGKILL)) == expected
    services.wait_until(lambda: stack.docker.inspect(names[0])["State"]["Pid"] not in (0, pid))
    stack.wait_healthy(names[0])
    assert streams([stack.docker.address(names[0], 50051)]) == expected
    stack.docker("stop", third)
    assert stack.docker.inspect(third)["State"]["ExitCode"] == 0, stack.docker.logs(third)


def test_the_engine_is_restarted_under_streams(stack: containers.Stack):
    """They pause until its container serves again, and go on with the same tokens."""
    address = [stack.docker.address(stack.name("lb"), 50051)]
    expected = streams(address)
    assert streams(address, lambda: stack.docker("restart", stack.name("engine"))) == expected


def test_no_mode_of_a_folder_decides_whether_it_starts(stack: containers.Stack):
    """Some engines of containers ignore the modes in compose.yaml: others may then write to these folders."""
    options = {"type": "tmpfs", "device": "tmpfs", "o": "size=1m,mode=1777"}
    mounts = [
        f"{stack.make_volume('open', options)}:/run/pagewire",
        f"{stack.name('cache')}:/var/cache/pagewire",
    ]
    engine = stack.start("engine", "open", tmpfs=["/tmp:exec,mode=1777"], volumes=mounts)
    stack.wait_healthy(engine)
    words = "import os, sys; print(*[oct(os.stat(each).st_mode & 0o7777) for each in sys.argv[1:]])"
    folders = ["/tmp", "/run/pagewire", "/run/pagewire/sockets"]
    assert stack.docker("exec", engine, "python", "-c", words, *folders) == "0o1777 0o1777 0o700"
