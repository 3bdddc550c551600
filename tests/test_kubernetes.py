"""deploy/kubernetes without a cluster: Kubernetes' schemas, the definitions of others' resources, and the
program's own parser."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pagewire.config import RanksConfig, ServeConfig
from tests.test_deploy import COMPOSE, ROOT, known_metrics, parse

FOLDER = ROOT / "deploy" / "kubernetes"
FILES = sorted(path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml")
CUSTOM = {
    "PodMonitor",
    "InferencePool",
    "HTTPRoute",
    "ServingRuntime",
    "InferenceService",
    "LeaderWorkerSet",
}
"""Kinds that are not Kubernetes' own."""
DEFINITIONS = os.environ.get("PAGEWIRE_TEST_DEFINITIONS", "")


def read(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def objects(name: str) -> dict[str, dict[str, Any]]:
    """The objects of a file, by kind."""
    return {each["kind"]: each for each in read((FOLDER / name).read_text())}


def kustomized(name: str | Path) -> list[dict[str, Any]]:
    """What kubectl makes of a folder, of deploy/kubernetes unless its path is absolute."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    made = subprocess.run(["kubectl", "kustomize", FOLDER / name], capture_output=True, text=True, check=True)
    return read(made.stdout)


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = objects("base/pagewire.yaml")["Deployment"]["spec"]["template"]["spec"]
    return spec


def check_schema(objects: list[dict[str, Any]]) -> None:
    """Fails for a field that the newest Kubernetes does not know, or a value of another type."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for each in objects:
        if each["kind"] == "LeaderWorkerSet":
            check_schema(templates(each))
        elif each["kind"] not in CUSTOM:
            validate.validate(each, validate.latest_version(), strict=True)


def templates(group: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of a LeaderWorkerSet as objects: those of the leader and of the others."""
    parts = group["spec"]["leaderWorkerTemplate"]
    return [
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": name.lower()},
            "template": parts[name],
        }
        for name in ("leaderTemplate", "workerTemplate")
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name + "/" + path.name)
def test_objects_fit_the_schemas_of_kubernetes(path: Path):
    check_schema(read(path.read_text()))


@pytest.mark.parametrize("name", ["base", "gpu", "lws"])
def test_overlays_fit_them_too(name: str):
    check_schema(kustomized(name))


@pytest.mark.parametrize("kind", ["Deployment", "LeaderWorkerSet"])
def test_a_misspelt_field_is_found(kind: str):
    """By the schemas, so that the test above can fail."""
    objects_of = objects("base/pagewire.yaml") | objects("lws/pagewire.yaml")
    spec = objects_of[kind]["spec"]
    template = spec["template"] if kind == "Deployment" else spec["leaderWorkerTemplate"]["leaderTemplate"]
    container = template["spec"]["containers"][0]
    container["readynessProbe"] = container.pop("readinessProbe")
    with pytest.raises(Exception, match="readynessProbe"):
        check_schema([objects_of[kind]])


def closed(schema: Any) -> Any:
    """A schema of a custom resource that refuses fields which the API server would silently drop."""
    if not isinstance(schema, dict):
        return [closed(each) for each in schema] if isinstance(schema, list) else schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.skipif(not DEFINITIONS, reason="PAGEWIRE_TEST_DEFINITIONS names no folder of definitions")
def test_custom_resources_fit_their_definitions():
    """PAGEWIRE_TEST_DEFINITIONS: a folder with the CustomResourceDefinitions of all six, as YAML files."""
    schemas: dict[tuple[str, str], Any] = {}
    for path in Path(DEFINITIONS).glob("*.yaml"):
        for definition in filter(None, read(path.read_text())):
            spec = definition["spec"]
            for version in spec["versions"]:
                key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                schemas[key] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    checked = set()
    for path in FILES:
        for each in read(path.read_text()):
            if each["kind"] in CUSTOM:
                jsonschema.validate(each["spec"], closed(schemas[each["apiVersion"], each["kind"]]))
                checked.add(each["kind"])
    assert checked == CUSTOM


LWS = {
    "$(LWS_GROUP_SIZE)": "2",
    "$(LWS_WORKER_INDEX)": "1",
    "$(LWS_LEADER_ADDRESS)": "localhost",
    "$(POD_IP)": "127.0.0.1",
}
"""What LeaderWorkerSet and the kubelet set, on one host."""


def expanded(words: list[str]) -> list[str]:
    """Arguments as a container gets them: variables and templates are filled in."""
    values = {"$(NAMESPACE)": "default", "{{.Namespace}}": "default", "{{.Name}}": "smollm2", **LWS}
    for name, value in values.items():
        words = [word.replace(name, value) for word in words]
    return words


def test_pods_meet_the_program():
    """The command parses; ports and probes are those of its flags, and its caches are in volumes."""
    (container,) = pod()["containers"]
    config: ServeConfig = parse(*expanded(container["args"]))
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"grpc": config.port, "http": config.openai_port, "metrics": config.http_port}
    assert config.host == config.openai_host == config.http_host == "0.0.0.0"
    assert config.frontends and config.standbys and not config.no_standby and not config.no_restart
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert mounts == {"/var/cache/pagewire", "/models", "/tmp"}
    service = objects("base/pagewire.yaml")["Service"]
    name = service["metadata"]["name"]
    assert (
        f"{name}.default.svc.cluster.local" in config.openai_allowed_host
        and name in config.openai_allowed_host
    )
    assert {each["targetPort"]: each["port"] for each in service["spec"]["ports"]} == {
        "grpc": config.port,
        "http": config.openai_port,
    }


def test_images_are_those_of_compose():
    for name, suffix in (("base", ""), ("gpu", "-cuda")):
        (deployment,) = (each for each in kustomized(name) if each["kind"] == "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == COMPOSE["services"]["engine"]["image"].replace(":", f"{suffix}:")
        devices = [each["value"] for each in container["env"] if each["name"] == "PAGEWIRE_DEVICE"]
        assert devices == (["cuda"] if suffix else [])
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == bool(suffix)
    runtime = objects("kserve.yaml")["ServingRuntime"]["spec"]
    assert runtime["containers"][0]["image"] == COMPOSE["services"]["engine"]["image"]


def test_the_kustomization_of_the_page_names_an_image(tmp_path: Path):
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (line, text) = re.findall(r"^(mkdir -p mine && cat > .+) <<'END'\n(.*?)^END$", page, re.M | re.S)[0]
    assert line.endswith("> mine/kustomization.yaml")
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(text)
    (deployment,) = (each for each in kustomized(tmp_path / "mine") if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/{COMPOSE['services']['engine']['image']}"


def test_pods_are_restricted_and_drain():
    spec = pod()
    user = COMPOSE["services"]["engine"]["user"].split(":")[0]
    assert spec["enableServiceLinks"] is False and f"{spec['securityContext']['runAsUser']}" == user
    (container,) = spec["containers"]
    config = parse(*expanded(container["args"]))
    assert spec["terminationGracePeriodSeconds"] > config.drain_delay + config.shutdown_grace + 2
    (picker,) = objects("gateway.yaml")["Deployment"]["spec"]["template"]["spec"]["containers"]
    for each in (container, picker):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        each["name"] for each in spec["volumes"]
    }


def test_all_objects_mean_the_same_pods():
    base, monitoring, gateway = map(objects, ("base/pagewire.yaml", "monitoring.yaml", "gateway.yaml"))
    labels = base["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        base["Deployment"]["spec"]["selector"]["matchLabels"],
        base["Service"]["spec"]["selector"],
        base["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        monitoring["PodMonitor"]["spec"]["selector"]["matchLabels"],
        gateway["InferencePool"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector and selector.items() <= labels.items() for selector in selectors)
    target = monitoring["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", base["Deployment"]["metadata"]["name"])
    assert "replicas" not in base["Deployment"]["spec"], "the autoscaler's number would be overwritten"
    # A pod of the picker is none of the pool.
    assert gateway["Deployment"]["spec"]["template"]["metadata"]["labels"].items().isdisjoint(labels.items())


def test_pods_are_watched_and_scaled_by_metrics_that_exist():
    monitoring = objects("monitoring.yaml")
    (endpoint,) = monitoring["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"
    (metric,) = monitoring["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in known_metrics()


def test_the_endpoint_picker_is_told_of_metrics_that_exist():
    """Of an engine that our pods' label names, at the port where requests go."""
    gateway = objects("gateway.yaml")
    config = yaml.safe_load(gateway["ConfigMap"]["data"]["config.yaml"])
    plugins = {each["type"]: each.get("parameters", {}) for each in config["plugins"]}
    (engine,) = plugins["core-metrics-extractor"]["engineConfigs"]
    labels = objects("base/pagewire.yaml")["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert engine.pop("name") == labels["llm-d.ai/engine-type"]
    assert len(engine) == 3 and set(engine.values()) <= known_metrics()
    used = {each["pluginRef"] for profile in config["schedulingProfiles"] for each in profile["plugins"]}
    assert used <= plugins.keys()
    pool = gateway["InferencePool"]["spec"]
    serve = parse(*expanded(pod()["containers"][0]["args"]))
    assert pool["targetPorts"] == [{"number": serve.openai_port}]
    service = gateway["Service"]
    assert pool["endpointPickerRef"]["name"] == service["metadata"]["name"]
    assert pool["endpointPickerRef"]["port"]["number"] == service["spec"]["ports"][0]["port"]
    (reference,) = gateway["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert (reference["kind"], reference["name"]) == (
        "InferencePool",
        gateway["InferencePool"]["metadata"]["name"],
    )
    assert (
        f"--pool-name={reference['name']}"
        in (gateway["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"])
    )


def test_kserve_starts_what_the_program_takes():
    kserve = objects("kserve.yaml")
    runtime, model = kserve["ServingRuntime"], kserve["InferenceService"]["spec"]["predictor"]["model"]
    (container,) = runtime["spec"]["containers"]
    config = parse(*expanded(container["args"]))
    assert container["name"] == "kserve-container" and config.model == "/mnt/models"
    assert [each["containerPort"] for each in container["ports"]] == [config.openai_port]
    assert int(runtime["spec"]["annotations"]["prometheus.kserve.io/port"]) == config.http_port
    for name in ("startup", "readiness", "liveness"):
        assert container[f"{name}Probe"]["httpGet"]["port"] == config.http_port
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert model["modelFormat"]["name"] in {each["name"] for each in runtime["spec"]["supportedModelFormats"]}


def pods_of_a_group() -> list[dict[str, Any]]:
    """The pods of the leader and of the others."""
    return [each["template"] for each in templates(objects("lws/pagewire.yaml")["LeaderWorkerSet"])]


def test_a_group_is_one_and_meets_its_leader():
    """As many pods as hosts, with one address, port and size; keys of one Secret, of each side its own."""
    spec = objects("lws/pagewire.yaml")["LeaderWorkerSet"]["spec"]
    leader, others = (each["spec"] for each in pods_of_a_group())
    serve: ServeConfig = parse(*expanded(leader["containers"][0]["args"]))
    ranks: RanksConfig = parse(*expanded(others["containers"][0]["args"]))
    assert serve.nnodes == ranks.nnodes == spec["leaderWorkerTemplate"]["size"]
    assert serve.tensor_parallel_size == ranks.tensor_parallel_size == 2 and ranks.node_rank == 1
    assert serve.master_port == ranks.master_port and serve.trusted_network and ranks.trusted_network
    assert serve.frontends and not serve.no_restart
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert spec["startupPolicy"] == "LeaderCreated", "a leader is ready after its group"
    for config, pod, name in ((serve, leader, "engine.key"), (ranks, others, "client.key")):
        (copy,) = pod["initContainers"]
        assert copy["command"] == ["install", "-m", "0400", f"/secret/{name}", config.curve_key]
        (secret,) = (each["secret"] for each in pod["volumes"] if each["name"] == "secret")
        assert secret["items"] == [{"key": name, "path": name}], "a pod has the keys of its side alone"
    policy = next(
        each for each in read((FOLDER / "lws/pagewire.yaml").read_text()) if "NetworkPolicy" in each["kind"]
    )
    labels = policy["spec"]["podSelector"]["matchLabels"].items()
    assert all(labels <= each["metadata"]["labels"].items() for each in pods_of_a_group())
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": policy["spec"]["podSelector"]}]}]


def test_pods_of_a_group_are_as_those_without():
    """Users, rights, probes, ports and mounts are those of the Deployment; the leader drains, and others stay
    until it has."""
    (alone,) = pod()["containers"]
    leader, others = (each["spec"] for each in pods_of_a_group())
    for each in (leader, others):
        assert each["securityContext"] == pod()["securityContext"] and not each["enableServiceLinks"]
        assert each["terminationGracePeriodSeconds"] == pod()["terminationGracePeriodSeconds"]
        for container in (*each["initContainers"], *each["containers"]):
            assert container["securityContext"] == alone["securityContext"]
            names = {mount["name"] for mount in container["volumeMounts"]}
            assert names <= {volume["name"] for volume in each["volumes"]}
        (container,) = each["containers"]
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {
            *(mount["mountPath"] for mount in alone["volumeMounts"]),
            "/keys",
        }
    (container,) = leader["containers"]
    for name in ("readinessProbe", "livenessProbe"):
        assert container[name] == alone[name]
    assert [port for port in container["ports"] if port["name"] != "ranks"] == alone["ports"]
    serve = parse(*expanded(container["args"]))
    assert f"grace {serve.shutdown_grace + serve.drain_delay}" == "grace 65.0" and "range(70)" in str(others)
