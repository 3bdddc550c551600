"""Examples of pages, as pasted, beside a service."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pagewire import cli, flags
from pagewire.local_service import Service
from scripts.quickstarts import here
from tests.e2e import services

ROOT = Path(__file__).parents[2]


def parsed(words: list[str]) -> Any:
    """What our own parser makes of `COMMAND ...`. Raises UsageError."""
    config = cli.find_command(words[0]).config
    return flags.parse(config, words[1:], command=words[0], environment={})


def output_of(*command: str, **environment: str) -> str:
    """Runs a command that succeeds, and returns what it prints."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=services.PATIENCE_S,
        cwd=ROOT,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def output_of_python(block: str, service: Service) -> str:
    """Runs a block of Python. A warning is an error."""
    return output_of(sys.executable, "-W", "error", "-c", here(block, *_at(service)))


def output_of_shell(line: str, service: Service) -> str:
    """Runs a line of a shell."""
    return output_of("bash", "-ec", here(line, *_at(service)))


def _at(service: Service) -> tuple[str, str]:
    """HOST:PORT of gRPC and of HTTP."""
    return service.address, str(service.facts["openai"]).removesuffix("/v1").removeprefix("http://")
