"""The quickstarts of README.md run as pasted, on the built-in model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pagewire.local_service import Service
from tests.e2e import services

ROOT = Path(__file__).parents[2]


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page that are marked with a language; "" for those without."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [text for marked, text in fences if marked == language]


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
