"""Where compiled kernels are kept, and when they are not."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


def flip(content: bytes) -> bytes:
    """Returns it with another bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes((content[middle] ^ 1,)) + content[middle + 1 :]


def test_what_is_damaged_is_not_executed(filled: Path, tmp_path: Path):
    """By a process; the next one finds it as it was."""
    shutil.copytree(filled / "pagewire", tmp_path / "pagewire")
    (folder,) = (tmp_path / "pagewire").iterdir()
    file = max(folder.glob("*.o"), key=lambda each: each.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(flip(content))
    printed, log = multiply(tmp_path)
    assert printed == ["36.0", "1"] and str(file) in log and "compiled again" in log
    assert multiply(tmp_path) == (["36.0", "0"], "")
    assert file.read_bytes()[32:] == content[32:]


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "linked", "pipe"])
def test_a_damaged_file_is_compiled_again(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """What a full disk or a crash leaves behind is not loaded, and the log names the file."""
    from kernels.cpu.compiler import cache as compiler

    machine_code, folder = bytes(range(200)), tmp_path / "kernels"
    folder.mkdir(mode=0o700)
    compiled, loaded = list[str](), list[bytes]()
    linker = SimpleNamespace(load=lambda code, name: loaded.append(code))
    monkeypatch.setattr(compiler, "cache_folder", lambda: folder)
    monkeypatch.setattr(compiler, "is_cached", lambda: True)
    monkeypatch.setattr(compiler, "current_linker", lambda: linker)
    monkeypatch.setattr(compiler, "lower", lambda kernel, name: compiled.append(name))
    monkeypatch.setattr(compiler, "assemble", lambda code: machine_code)

    def kernel() -> None:
        """Is never called."""

    kernel.__module__ = "kernels.cpu.matmul"
    compiler._address(kernel, "one")
    file = folder / "one.o"
    content = file.read_bytes()
    file.unlink()
    if damage == "linked":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")
    elif damage == "pipe":
        os.mkfifo(file)
    else:
        file.write_bytes({"empty": b"", "cut": content[:116], "flipped": flip(content)}[damage])
    with caplog.at_level(logging.WARNING):
        compiler._address(kernel, "one")
    assert len(compiled) == 2 and str(file) in caplog.text and "compiled again" in caplog.text
    compiler._address(kernel, "one")
    assert len(compiled) == 2 and loaded == [machine_code] * 3
    assert file.read_bytes() == content and not file.is_symlink()


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
