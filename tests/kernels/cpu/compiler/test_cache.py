"""Where compiled kernels are kept, and when they are not."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu_kernels

ROOT = Path(__file__).parents[4]
MULTIPLY = """
import torch
from kernels.cpu.compiler import cache as compiler
compiled, lower = [], compiler.lower
compiler.lower = lambda kernel, name, *statics: compiled.append(name) or lower(kernel, name, *statics)
from kernels.cpu.matmul.packed import pack_weight
x = torch.ones(3, 4, dtype=torch.bfloat16)
print(pack_weight(x, None).multiply(x).sum().item())
print(len(compiled))
"""


def multiply(cache: Path) -> tuple[list[str], str]:
    """Uses a kernel in a fresh process. Returns what it printed, and its log."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", MULTIPLY]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return run.stdout.split(), run.stderr


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which a process has left what it compiled."""
    cache = tmp_path_factory.mktemp("filled")
    assert multiply(cache) == (["36.0", "3"], "")
    return cache


def test_the_second_process_finds_the_code_of_the_first(filled: Path):
    (folder,) = (filled / "pagewire").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert multiply(filled) == (["36.0", "0"], "")


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "linked", "pipe"])
def test_a_damaged_file_is_compiled_again(filled: Path, tmp_path: Path, damage: str):
    """What a full disk or a crash leaves behind is not executed, and the log names the file."""
    shutil.copytree(filled / "pagewire", tmp_path / "pagewire")
    (folder,) = (tmp_path / "pagewire").iterdir()
    file = max(folder.glob("*.o"), key=lambda each: each.stat().st_size)
    content = file.read_bytes()
    file.unlink()
    if damage == "linked":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")
    elif damage == "pipe":
        os.mkfifo(file)
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes((content[middle] ^ 1,)) + content[middle + 1 :]
        file.write_bytes({"empty": b"", "cut": content[:middle], "flipped": flipped}[damage])
    printed, log = multiply(tmp_path)
    assert printed == ["36.0", "1"] and str(file) in log and "compiled again" in log
    assert multiply(tmp_path) == (["36.0", "0"], "")
    assert file.read_bytes()[32:] == content[32:]


def test_two_processes_at_once_compile_a_kernel_once(tmp_path: Path):
    """One waits for what the other one has begun."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", MULTIPLY]
    both = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate()[0].split() for process in both]
    assert [total for total, _ in printed] == ["36.0", "36.0"]
    assert sum(int(count) for _, count in printed) == 3


def test_a_folder_that_cannot_be(tmp_path: Path):
    """As with a read-only home: the kernels work all the same, and the log says what it costs."""
    (tmp_path / "file").write_text("")
    printed, log = multiply(tmp_path / "file")
    assert printed[0] == "36.0"
    assert "compiled at every start" in log


def test_a_folder_that_others_may_write_to(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """What lies there would be executed."""
    from kernels.cpu.compiler.cache import use_cache

    tmp_path.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert not use_cache(tmp_path)
    assert "others may write" in caplog.text


def test_another_version_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Or another CPU, as in a home that several hosts share."""
    from kernels.cpu.compiler import cache as compiler

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = compiler.cache_folder.__wrapped__()
    assert before.parent == tmp_path / "pagewire"
    with monkeypatch.context() as changed:
        changed.setattr(compiler, "target_name", lambda: "another CPU")
        assert compiler.cache_folder.__wrapped__() != before
    assert compiler.cache_folder.__wrapped__() == before
    read = Path.read_bytes
    for part in ("cpu/sampling/choose.py", "ops/sampling/columns.py"):
        monkeypatch.setattr(
            Path,
            "read_bytes",
            lambda file, end=part: b"" if file.as_posix().endswith(f"kernels/{end}") else read(file),
        )
        assert compiler.cache_folder.__wrapped__() != before, part
