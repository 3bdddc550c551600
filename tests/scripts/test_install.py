"""scripts/install.sh: what it installs, and that it does so once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """\
#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in *+cpu) exit "$WITHOUT_CPU_BUILD" ;; esac
echo "Collecting tqdm"
echo "  Downloading tqdm-4.70.1-py3-none-any.whl (78 kB)"
echo "Installing collected packages: tqdm, pagewire"
"""
"""In an environment: writes down what it is called with, and prints what pip does."""


class Environment:
    """A virtual environment whose Python is a script."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder / "venv", folder / "calls"
        self.has_cpu_build = True
        python = self.folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTHON)
        python.chmod(0o755)

    def install(self, extra: str) -> tuple[list[str], str]:
        """Returns the requirements that each call of pip has, and what the script says."""
        self.calls.write_text("")
        environment = {**os.environ, "PYTHON": sys.executable, "CALLS": str(self.calls)}
        environment |= {"WITHOUT_CPU_BUILD": str(int(not self.has_cpu_build))}
        command = [ROOT / "scripts" / "install.sh", self.folder, extra]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return [
            line.partition(" constraints.txt ")[2] for line in self.calls.read_text().splitlines()
        ], run.stderr


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


without_gpu = pytest.mark.skipif(
    sys.platform != "linux" or Path("/dev/nvidia0").exists(), reason="a GPU takes the CUDA build of torch"
)


@without_gpu
def test_a_demo_installs_what_serves_and_tests_add_the_rest(environment: Environment):
    (torch, tree), said = environment.install("serve")
    assert torch.startswith("torch==") and torch.endswith("+cpu")
    assert tree == f"{torch} -e .[serve]"
    assert "installing pagewire[serve]: 2 packages in" in said and "\r" not in said
    assert environment.install("serve") == ([], ""), "it is there"
    assert environment.install("dev")[0][1] == f"{torch} -e .[dev]"
    assert environment.install("dev") == ([], "")


def test_what_tests_need_has_what_serves(environment: Environment):
    assert environment.install("dev")[0] != []
    assert environment.install("serve") == ([], "")


@without_gpu
def test_without_a_cpu_build_of_torch(environment: Environment):
    environment.has_cpu_build = False
    (_, tree), said = environment.install("serve")
    assert tree == "-e .[serve]" and "TORCH_INDEX" in said


def test_an_installation_that_failed_is_tried_again(environment: Environment):
    (environment.folder / ".installed-serve").write_text("another list of dependencies")
    assert environment.install("serve")[0] != []
