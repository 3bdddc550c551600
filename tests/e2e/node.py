"""The examples for Node, with their packages installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e import services

EXAMPLE = services.ROOT / "examples" / "node"

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="Node and npm are not installed"
)


def install_examples(folder: Path) -> None:
    """Copies the examples to a folder and installs what they need, in the time that npm and the test allow:
    the speed of a registry is no fault."""
    for name in ("client.js", "openai.mjs", "package.json"):
        shutil.copy(EXAMPLE / name, folder)
    # By default npm waits 5 minutes for an answer that a registry began and does not go on with.
    patience = [
        "--fetch-timeout=15000",
        "--fetch-retries=5",
        "--fetch-retry-mintimeout=1000",
        "--fetch-retry-maxtimeout=5000",
    ]
    install = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--no-package-lock",
        "--loglevel=error",
        *patience,
    ]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def node_environment() -> dict[str, str]:
    """The variables that an example is started with."""
    return {"PATH": str(Path(shutil.which("node") or "").parent), "PROTOS": str(services.ROOT / "protos")}


def node(folder: Path, *arguments: str, script: str = "client.js", **variables: str) -> str:
    """What an example prints."""
    done = subprocess.run(
        ["node", script, *arguments],
        cwd=folder,
        env={**node_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=services.PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
