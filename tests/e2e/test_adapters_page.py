"""The examples of docs/adapters.md run as pasted, one after another, on the built-in model, with the adapter
that the page makes."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pagewire.checkpoints.paths import hub_name
from pagewire.local_service import Service
from scripts.quickstarts import blocks, lines
from tests.e2e.pages import ROOT, output_of, output_of_python, output_of_shell, parsed

PAGE = ROOT / "docs" / "adapters.md"
DATA = "/data/adapters"
MAKE, *CLIENTS = blocks("python", PAGE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """As the page starts it, with the adapter that it makes, but for the model, the folder and ports."""
    (line,) = lines("pagewire", PAGE)
    config = parsed(shlex.split(line.replace(DATA, str(folder)))[1:])
    assert hub_name(config.model) is not None and f'"{config.model}"' in MAKE and config.openai_port == 8000
    base = str(ROOT / "pagewire" / "demo_model")
    output_of(sys.executable, "-c", MAKE.replace(config.model, base).replace(DATA, str(folder)))
    changes = {"model": base, "port": 0, "openai_port": 0, "no_standby": True, "log_level": "error"}
    with Service(replace(config, **changes)) as service:
        yield service


def test_generate(service: Service) -> None:
    """By the adapter: the base model answers otherwise."""
    named = ', model="legal"'
    base, adapted = (output_of_python(CLIENTS[0].replace(named, used), service) for used in ("", named))
    (line,) = lines("curl", PAGE)
    assert base != adapted != "" and json.loads(output_of_shell(line, service))["model"] == "legal"


def test_load_and_unload(service: Service, folder: Path) -> None:
    """What is printed has the words of the page, but for digests and sizes."""
    (text,) = [block for block in blocks("", PAGE) if block.startswith("$ ")]
    for example in text.removeprefix("$ ").split("\n$ "):
        command, *shown = example.strip().splitlines()
        program = f"{shlex.quote(sys.executable)} -m pagewire"
        found = output_of(
            "bash", "-ec", command.replace("pagewire", program, 1), PAGEWIRE_ADDRESS=service.address
        )
        assert words(found) == words("\n".join(shown).replace(DATA, str(folder)))


def words(text: str) -> list[list[str]]:
    varying = re.compile(r"\b[0-9a-f]{6,}\b(\.\.\.)?|\b\d+\.\d\b")
    return [varying.sub("*", line).split() for line in text.splitlines()]


def test_load_and_unload_in_python(service: Service) -> None:
    digest, names = output_of_python(CLIENTS[1], service).splitlines()
    assert len(digest) == 64 and names == "['legal', 'support']"
