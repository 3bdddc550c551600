"""The modules that commands look for are those of the extras that they name."""

import importlib.util
import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from pagewire.cli import extras

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
DISPENSABLE = {
    "huggingface-hub": "only names of the Hub need it",
    "llvmlite": "the worker runs without, more slowly",
}
"""Distributions of extras without which processes start."""
MODULES = packages_distributions()


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions_of(extra: str) -> set[str]:
    """The distributions that an extra adds to the base install, those of the extras in it included."""
    found: set[str] = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name, others = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement).groups()  # type: ignore[union-attr]
        if name == "pagewire":
            found |= {each for other in others.split(",") for each in distributions_of(other)}
        else:
            found.add(normalized(name))
    return found


@pytest.mark.parametrize("extra", extras._MODULES)
def test_each_distribution_of_an_extra_is_looked_for(extra: str) -> None:
    """By one of its modules, and no module of another distribution is."""
    wanted = distributions_of(extra) - DISPENSABLE.keys()
    looked_for = {
        normalized(owner)
        for module in extras._MODULES[extra]
        for owner in MODULES.get(module, [f"no distribution has {module}"])
    }
    assert looked_for == wanted


@pytest.mark.parametrize("name", DISPENSABLE)
def test_what_is_dispensable_is_in_an_extra(name: str) -> None:
    assert any(name in distributions_of(extra) for extra in extras._MODULES)


def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "zmq" else real(name))
    with pytest.raises(extras.StartupError) as caught:
        extras.require("frontend", "start a frontend")
    assert caught.value.why == "zmq is not installed" and "frontend" in caught.value.todo
