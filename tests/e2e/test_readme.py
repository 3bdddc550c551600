"""The quickstarts of README.md run as pasted, on the built-in model. What needs containers is checked against
the Dockerfile, the manifests and the program."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagewire import cli, flags
from pagewire.checkpoints.paths import hub_name
from pagewire.local_service import Service
from tests.e2e import services

ROOT = Path(__file__).parents[2]


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page that are marked with a language; "" for those without."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [text for marked, text in fences if marked == language]


def lines(program: str) -> list[list[str]]:
    """The words of each line of the page that calls a program."""
    text = "\n".join(blocks("")).replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.startswith(f"{program} ")]


def parsed(words: list[str]) -> Any:
    """What our own parser makes of `COMMAND ...`. Raises UsageError."""
    config = cli.find_command(words[0]).config
    return flags.parse(config, words[1:], command=words[0], environment={})


def here(text: str, service: Service) -> str:
    """A block with the ports of this service."""
    http = str(service.facts["openai"]).removesuffix("/v1").removeprefix("http://")
    return text.replace("127.0.0.1:50051", service.address).replace("127.0.0.1:8000", http)


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=services.PATIENCE_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python(number: int, demo: Service):
    text = output_of(sys.executable, "-W", "error", "-c", here(blocks("python")[number], demo))
    assert "Tokyo" in text


def test_curl(demo: Service):
    (block,) = (each for each in blocks("") if each.startswith("curl "))
    assert "Tokyo" in output_of("bash", "-ec", here(block, demo))


def test_pip():
    """As far as metadata: what it would install takes gigabytes."""
    (words,) = lines("pip")
    (target,) = [word for word in words if word.startswith(".")]
    extras = target.removeprefix(".[").removesuffix("]").split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= project["optional-dependencies"].keys()
    options = ("--dry-run", "--no-deps", "--no-index", "--no-build-isolation")
    text = output_of(sys.executable, "-m", *words, *options)
    assert f"Would install pagewire-{project['version']}" in text


def test_the_model_is_one_of_the_hub():
    for words in lines("pagewire"):
        config = parsed(words[1:])
        assert hub_name(config.model) is not None and config.openai_port == 8000


def test_docker():
    build, run = lines("docker")
    dockerfile, tag = (ROOT / build[build.index("-f") + 1]).read_text(), build[build.index("-t") + 1]
    assert (build[1], build[-1]) == ("build", ".") and 'ENTRYPOINT ["pagewire"]' in dockerfile
    assert f"image: {tag}" in (ROOT / "compose.yaml").read_text()
    config = parsed(run[run.index(tag) + 1 :])
    assert hub_name(config.model) is not None and "PAGEWIRE_OPENAI_HOST=0.0.0.0" in dockerfile
    host, outside, inside = run[run.index("-p") + 1].split(":")
    assert (host, int(outside)) == ("127.0.0.1", 8000) and int(inside) == config.openai_port


def test_kubernetes():
    """test_deploy.py and test_kubernetes.py look into the manifests."""
    ((_, _, option, target),) = lines("kubectl")
    path = ROOT / target
    if option == "-k":
        resources = yaml.safe_load((path / "kustomization.yaml").read_text())["resources"]
        assert resources and all((path / each).is_file() for each in resources)
    else:
        assert option == "-f" and path.is_file()
