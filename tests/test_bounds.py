"""Bounds of dependencies: pagewire installs beside what an environment has, and their floors hold together.

Resolved by uv, which reads metadata of an index and downloads nothing else.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PLATFORM = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_34")


class Unresolvable(Exception):
    """No versions satisfy all requirements; the message says which do not go together."""


def requirements(*extras: str) -> Iterator[str]:
    """The base install's requirements and those of extras, with the extras that these are made of."""
    yield from PROJECT["dependencies"]
    for extra in extras:
        for each in PROJECT["optional-dependencies"][extra]:
            needed = Requirement(each)
            yield from requirements(*needed.extras) if needed.name == "pagewire" else [each]


def resolve(needed: list[str], *options: str) -> dict[str, str]:
    """Returns versions by normalized name. Raises Unresolvable."""
    command = [
        Path(sys.executable).with_name("uv"),
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
    ]
    text = "\n".join(needed)
    run = subprocess.run([*command, *PLATFORM, *options, "-"], input=text, capture_output=True, text=True)
    if run.returncode != 0:
        raise Unresolvable(run.stderr)
    return dict(line.split("==") for line in run.stdout.split() if "==" in line)


@cache
def why_offline() -> str:
    """Empty where an index answers."""
    try:
        resolve(["typing-extensions"])
    except Unresolvable as error:
        return str(error).strip()
    return ""


@pytest.fixture(autouse=True)
def online() -> None:
    if why_offline():
        pytest.skip(f"no package index: {why_offline()}")


@pytest.mark.parametrize("neighbour", ["vllm", "sglang", "kserve", "tritonclient[grpc]"])
def test_everything_that_serves_installs_beside(neighbour: str):
    """The newest release of each, with its pinned torch, numba and others. The error names what cannot be."""
    name = Requirement(neighbour).name
    newest = resolve([neighbour])[name]
    found = resolve([*requirements("serve"), f"{neighbour}=={newest}"])
    assert found[name] == newest and "torch" in found


def test_a_conflict_is_found():
    """Of the kind that this page is about."""
    with pytest.raises(Unresolvable, match="protobuf"):
        resolve([*requirements(), "protobuf<6"])


def test_the_floors_hold_together():
    """Each is a release that exists, and none is raised by what another one needs."""
    floors = {}
    for each in requirements("serve", "tracing"):
        needed = Requirement(each)
        (floor,) = (bound.version for bound in needed.specifier if bound.operator == ">=")
        floors[needed.name.lower()] = floor
    found = resolve([*requirements("serve", "tracing")], "--resolution", "lowest-direct")
    raised = {
        name: (floor, found[name]) for name, floor in floors.items() if not is_floor(floor, found[name])
    }
    assert raised == {}


def is_floor(floor: str, version: str) -> bool:
    """True for the first release of a floor: 1.76.0 of 1.76."""
    return Requirement(f"x=={floor}").specifier.contains(version)
