"""An API server of Kubernetes takes deploy/kubernetes as it is; its selectors find what they are for."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e import services
from tests.e2e.api_server import Cluster, cluster
from tests.test_kubernetes import CUSTOM, DEFINITIONS, FOLDER, kustomized, read

SOURCES = ["base", "gpu", "monitoring.yaml", "gateway.yaml", "kserve.yaml", "lws"]
"""What docs/kubernetes.md applies: kustomizations and files."""
LABELS = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
"""Of a namespace: pods that are not restricted are refused, and their Deployments are warned of."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the definitions of custom resources, if there are some (docs/kubernetes.md)."""
    with cluster(tmp_path_factory.mktemp("cluster")) as server:
        if DEFINITIONS:
            server("apply", "--server-side", f"--filename={DEFINITIONS}")
            services.wait_until(lambda: kinds(server) >= CUSTOM)
        yield server


def kinds(server: Cluster) -> set[str]:
    """Returns the kinds of objects that the server knows."""
    return {line.split()[-1] for line in server("api-resources", "--no-headers").splitlines()}


def known(source: str) -> list[dict[str, Any]]:
    """Returns the objects of a source that are of kinds which the server knows. Skips the test if none is."""
    path = FOLDER / source
    objects = kustomized(source) if path.is_dir() else read(path.read_text())
    objects = [each for each in objects if DEFINITIONS or each["kind"] not in CUSTOM]
    if not objects:
        pytest.skip("PAGEWIRE_TEST_DEFINITIONS names no folder of definitions")
    return objects


@pytest.fixture
def namespace(server: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty one for a test. It keeps its objects: a controller would remove them."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]
    server("create", "namespace", name)
    server("label", "namespace", name, *LABELS)
    server("create", "serviceaccount", "default", f"--namespace={name}")
    yield name


def dump(objects: list[dict[str, Any]]) -> str:
    return yaml.safe_dump_all(objects)


def named(each: dict[str, Any]) -> str:
    """Returns how kubectl gets an object: KIND.VERSION.GROUP/NAME, or KIND/NAME of a kind without a group."""
    group, slash, version = each["apiVersion"].rpartition("/")
    return f"{each['kind'].lower()}{f'.{version}.{group}' if slash else ''}/{each['metadata']['name']}"


def assert_kept(sent: Any, got: Any, path: str = "") -> None:
    """Fails if the server dropped or changed something; it may add defaults."""
    if isinstance(sent, dict):
        assert isinstance(got, dict), path
        for key, value in sent.items():
            assert key in got, f"{path}.{key}"
            assert_kept(value, got[key], f"{path}.{key}")
    elif isinstance(sent, list):
        assert isinstance(got, list) and len(sent) == len(got), path
        for number, (ours, its) in enumerate(zip(sent, got, strict=True)):
            assert_kept(ours, its, f"{path}[{number}]")
    else:
        assert sent == got or str(sent) == got, path  # a quantity comes back as text


@pytest.mark.parametrize("source", SOURCES)
def test_the_server_takes_every_field(server: Cluster, namespace: str, source: str):
    """Without a warning, first as a trial; everything comes back, and a second time nothing changes."""
    objects, here = known(source), f"--namespace={namespace}"
    words = ["apply", "--validate=strict", here, "--filename=-"]
    for more, outcome in ([["--dry-run=server"], "created (server dry run)"], [[], "created"]):
        lines = server(*words, *more, text=dump(objects)).splitlines()
        assert len(lines) == len(objects) and all(line.endswith(f" {outcome}") for line in lines), lines
    found = [server.get(named(each), here) for each in objects]
    for sent, got in zip(objects, found, strict=True):
        assert_kept(sent, got)
    server(*words, text=dump(objects))
    versions = [server.get(named(each), here)["metadata"]["resourceVersion"] for each in objects]
    assert versions == [got["metadata"]["resourceVersion"] for got in found]


@pytest.mark.parametrize("folder", ["base", "gpu"])
def test_folders_are_applied_as_the_page_says(server: Cluster, namespace: str, folder: str):
    server("apply", f"--namespace={namespace}", f"--kustomize={FOLDER / folder}")
    assert server.get("deployment/pagewire", f"--namespace={namespace}")["spec"]["replicas"] == 1


def test_a_misspelt_field_is_refused(server: Cluster, namespace: str):
    (deployment,) = (each for each in known("base") if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["readynessProbe"] = container.pop("readinessProbe")
    words = ["apply", "--validate=strict", f"--namespace={namespace}", "--filename=-"]
    refused = server.run(*words, text=dump([deployment]))
    assert refused.returncode != 0 and "readynessProbe" in refused.stderr


def make_pod(server: Cluster, namespace: str, deployment: dict[str, Any]) -> str:
    """Makes a pod of a Deployment's template, as its ReplicaSet does. Returns its name."""
    template, name = deployment["spec"]["template"], f"{deployment['metadata']['name']}-x"
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": name}}
    server("create", f"--namespace={namespace}", "--filename=-", text=dump([pod]))
    return name


def test_selectors_find_the_pods(server: Cluster, namespace: str):
    """Of Services, disruption budget, monitor, pool and autoscaler. A pod of the picker is none of ours."""
    objects = {named(each): each for source in SOURCES[:1] + SOURCES[2:4] for each in known(source)}
    server("apply", f"--namespace={namespace}", "--filename=-", text=dump(list(objects.values())))
    deployments = [each for each in objects.values() if each["kind"] == "Deployment"]
    pods = [make_pod(server, namespace, each) for each in deployments]
    here = f"--namespace={namespace}"

    def selected(labels: dict[str, str] | str) -> list[str]:
        text = labels if isinstance(labels, str) else ",".join(f"{k}={v}" for k, v in labels.items())
        return [each["metadata"]["name"] for each in server.get("pods", here, f"--selector={text}")["items"]]

    selectors: dict[str, dict[str, str] | str] = {}
    for name, each in objects.items():
        match each["kind"]:
            case "Service":
                selectors[name] = server.get(name, here)["spec"]["selector"]
            case "PodDisruptionBudget" | "PodMonitor" | "InferencePool":
                selectors[name] = server.get(name, here)["spec"]["selector"]["matchLabels"]
            case "HorizontalPodAutoscaler":
                target = server.get(name, here)["spec"]["scaleTargetRef"]
                path = f"/apis/{target['apiVersion']}/namespaces/{namespace}/{target['kind'].lower()}s"
                scale = json.loads(server("get", f"--raw={path}/{target['name']}/scale"))
                selectors[name] = scale["status"]["selector"]
    assert len(selectors) == (6 if DEFINITIONS else 4)
    for name, labels in selectors.items():
        picker = "picker" in name
        assert selected(labels) == [pod for pod in pods if ("picker" in pod) == picker], name


def test_controllers_roll_out_and_watch_the_pods(server: Cluster, namespace: str):
    """A pod is made; once it is ready, as its node would say, it is rolled out, reached and counted."""
    here = f"--namespace={namespace}"
    objects = known("base") + [each for each in known("monitoring.yaml") if each["kind"] not in CUSTOM]
    ready: dict[str, Any] = {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
    ready["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    with server.controllers():
        server("apply", here, "--filename=-", text=dump(objects))
        services.wait_until(lambda: len(server.get("pods", here)["items"]) == 1)
        pod = server.get("pods", here)["items"][0]["metadata"]["name"]
        start(server, namespace, pod)
        patch = json.dumps({"status": ready})
        server("patch", f"pod/{pod}", here, "--subresource=status", f"--patch={patch}")
        assert "successfully rolled out" in server("rollout", "status", "deployment/pagewire", here)

        def slices() -> list[tuple[set[int], list[str]]]:
            found = server.get("endpointslices", here)["items"]
            return [({port["port"] for port in each["ports"] or []}, addresses(each)) for each in found]

        services.wait_until(lambda: slices() == [({50051, 8000}, ["10.0.0.1"])])
        budget = lambda: server.get("poddisruptionbudget/pagewire", here)["status"]  # noqa: E731
        services.wait_until(lambda: (budget()["expectedPods"], budget()["disruptionsAllowed"]) == (1, 1))

        def scaler() -> dict[str, str]:
            """Its conditions: it finds the Deployment and asks for the metric, which nothing serves."""
            found = server.get("horizontalpodautoscaler/pagewire", here)["status"].get("conditions", [])
            return {each["type"]: f"{each['reason']}: {each['message']}" for each in found}

        services.wait_until(lambda: "ScalingActive" in scaler())
        assert scaler()["AbleToScale"].startswith("SucceededGetScale")
        assert "pagewire_core_requests_waiting" in scaler()["ScalingActive"]


def start(server: Cluster, namespace: str, pod: str) -> None:
    """Gives a pod a node, as a scheduler does."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one"}}
    server("create", "--filename=-", text=dump([node]))
    binding: dict[str, Any] = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}}
    binding["target"] = {"kind": "Node", "name": "one"}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/binding"
    server("create", f"--raw={path}", "--filename=-", text=json.dumps(binding))


def addresses(endpoints: dict[str, Any]) -> list[str]:
    """Returns the addresses of an EndpointSlice."""
    return [address for each in endpoints["endpoints"] or [] for address in each["addresses"]]


def test_the_picker_may_do_what_it_needs_and_no_more(server: Cluster, namespace: str):
    """By the Role of its service account."""
    server("apply", f"--namespace={namespace}", "--filename=-", text=dump(known("gateway.yaml")))
    account = f"--as=system:serviceaccount:{namespace}:pagewire-endpoint-picker"

    def may(verb: str, resource: str) -> bool:
        words = ["auth", "can-i", verb, resource, f"--namespace={namespace}", account]
        return server.run(*words).stdout.strip() == "yes"

    pools = ["inferencepools.inference.networking.k8s.io"] if DEFINITIONS else []
    for resource in ("pods", *pools):
        assert all(may(verb, resource) for verb in ("get", "list", "watch")), resource
        assert not may("delete", resource), resource
    assert not may("get", "secrets")
