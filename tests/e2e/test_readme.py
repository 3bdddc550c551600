"""The quickstarts of README.md run as pasted, on the built-in model. What needs containers is checked against
the Dockerfile, the manifests and the program. `make wheel-test` runs them with a wheel, too
(scripts/quickstarts.py)."""

import shlex
import sys
import tomllib

import pytest
import yaml

from pagewire.checkpoints.paths import hub_name
from pagewire.local_service import Service
from scripts.quickstarts import blocks, lines
from tests.e2e.pages import ROOT, output_of, output_of_python, output_of_shell, parsed


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python(number: int, demo: Service):
    assert "Tokyo" in output_of_python(blocks("python")[number], demo)


def test_curl(demo: Service):
    (line,) = lines("curl")
    assert "Tokyo" in output_of_shell(line, demo)


def test_pip():
    """As far as metadata: what it would install takes gigabytes."""
    (line,) = lines("pip")
    words = shlex.split(line)
    (target,) = [word for word in words if word.startswith(".")]
    extras = target.removeprefix(".[").removesuffix("]").split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= project["optional-dependencies"].keys()
    options = ("--dry-run", "--no-deps", "--no-index", "--no-build-isolation")
    text = output_of(sys.executable, "-m", *words, *options)
    assert f"Would install pagewire-{project['version']}" in text


def test_the_model_is_one_of_the_hub():
    for line in lines("pagewire"):
        config = parsed(shlex.split(line)[1:])
        assert hub_name(config.model) is not None and config.openai_port == 8000


def test_docker():
    build, run = map(shlex.split, lines("docker"))
    dockerfile, tag = (ROOT / build[build.index("-f") + 1]).read_text(), build[build.index("-t") + 1]
    assert (build[1], build[-1]) == ("build", ".") and 'ENTRYPOINT ["pagewire"]' in dockerfile
    assert f"image: {tag}" in (ROOT / "compose.yaml").read_text()
    config = parsed(run[run.index(tag) + 1 :])
    assert hub_name(config.model) is not None and "PAGEWIRE_OPENAI_HOST=0.0.0.0" in dockerfile
    host, outside, inside = run[run.index("-p") + 1].split(":")
    assert (host, int(outside)) == ("127.0.0.1", 8000) and int(inside) == config.openai_port


def test_kubernetes():
    """test_deploy.py and test_kubernetes.py look into the manifests."""
    (line,) = lines("kubectl")
    _, _, option, target = line.split()
    path = ROOT / target
    if option == "-k":
        resources = yaml.safe_load((path / "kustomization.yaml").read_text())["resources"]
        assert resources and all((path / each).is_file() for each in resources)
    else:
        assert option == "-f" and path.is_file()
