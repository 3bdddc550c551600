"""Bounds of dependencies: pagewire installs beside what an environment has, and their floors hold together.

Resolved by uv, which reads metadata of an index and downloads nothing else.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NEIGHBOURS = ["vllm", "sglang", "kserve", "tritonclient[grpc]"]
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


def resolve_beside(neighbour: str) -> tuple[str, dict[str, str]]:
    """Returns the newest release, and what is installed with it. Raises Unresolvable."""
    newest = resolve([neighbour])[Requirement(neighbour).name]
    return newest, resolve([*requirements("serve"), f"{neighbour}=={newest}"])


@pytest.fixture(scope="module")
def beside() -> Iterator[dict[str, Future[tuple[str, dict[str, str]]]]]:
    """Of each neighbour, all at once: they wait for the index."""
    with ThreadPoolExecutor(len(NEIGHBOURS)) as pool:
        yield {} if why_offline() else {each: pool.submit(resolve_beside, each) for each in NEIGHBOURS}


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_everything_that_serves_installs_beside(
    neighbour: str, beside: dict[str, Future[tuple[str, dict[str, str]]]]
):
    """The newest release of each, with its pinned torch, numba and others. The error names what cannot be."""
    newest, found = beside[neighbour].result()
    assert found[Requirement(neighbour).name] == newest and "torch" in found


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
