"""What Triton keeps on disk is executed: nothing torn, and nothing that others could have written."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from triton import knobs

from kernels.triton import kernel_cache
from kernels.triton.kernel_cache import CheckedCache, private_folder

DAMAGES = ("empty", "cut", "flipped", "linked", "pipe", "folder", "gone", "no digest")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "cache"))
    return tmp_path / "cache" / "KEY"


def kept() -> CheckedCache:
    cache = CheckedCache("KEY")
    paths = {
        name: cache.put(content, name) for name, content in (("k.json", "{}"), ("k.cubin", b"\x7fELF code"))
    }
    cache.put_group("k.json", paths)
    return cache


def damage(file: Path, kind: str) -> None:
    content = file.read_bytes()
    if kind == "no digest":
        file = file.with_name(f"{file.name}.sha256")
    file.unlink()
    if kind == "linked":
        elsewhere = file.with_name("elsewhere")
        elsewhere.write_bytes(content)
        file.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind in ("empty", "cut", "flipped"):
        flipped = bytes((content[0] ^ 1,)) + content[1:]
        file.write_bytes({"empty": b"", "cut": content[:1], "flipped": flipped}[kind])


def test_what_is_whole_is_found(folder: Path):
    cache = kept()
    assert CheckedCache("KEY").get_group("k.json") == {
        "k.json": str(folder / "k.json"),
        "k.cubin": str(folder / "k.cubin"),
    }
    assert cache.get_file("k.cubin") == str(folder / "k.cubin") and cache.get_file("other") is None
    assert folder.stat().st_mode & 0o077 == 0 and folder.parent.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", ["k.json", "k.cubin", "__grp__k.json"])
def test_a_torn_file_is_not_used(folder: Path, name: str, kind: str, caplog: pytest.LogCaptureFixture):
    kept()
    damage(folder / name, kind)
    with caplog.at_level(logging.WARNING):
        assert CheckedCache("KEY").get_group("k.json") is None
        assert CheckedCache("KEY").get_file(name) is None
    assert kind == "gone" or "compiled again" in caplog.text
    if kind != "folder":
        assert kept().get_group("k.json") is not None


def test_a_file_elsewhere_is_not_used(folder: Path, tmp_path: Path):
    """A list of files names their paths."""
    cache = kept()
    (tmp_path / "k.cubin").write_bytes(b"else")
    cache.put_group("k.json", {"k.cubin": str(tmp_path / "k.cubin")})
    assert cache.get_group("k.json") is None


def test_a_kernel_whose_folder_others_may_write_to_is_dropped(folder: Path, caplog: pytest.LogCaptureFixture):
    """A planted file may have a planted digest."""
    kept()
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert CheckedCache("KEY").get_group("k.json") is None
    assert (
        "others may write" in caplog.text and folder.stat().st_mode & 0o077 == 0 and not [*folder.iterdir()]
    )


def test_files_of_developers_are_theirs(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(knobs.cache, "dump_dir", str(tmp_path / "dump"))
    cache = CheckedCache("KEY", dump=True)
    cache.put("text", "k.ttir")
    assert [each.name for each in (tmp_path / "dump" / "KEY").iterdir()] == ["k.ttir"]
    assert cache.get_file("k.ttir") is not None and not folder.exists()


def test_a_folder_that_others_may_write_to(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The one of this user's cache is taken, and the log says why."""
    named = tmp_path / "named"
    named.mkdir()
    environment = {"TRITON_CACHE_DIR": str(named), "XDG_CACHE_HOME": str(tmp_path)}
    assert private_folder(environment) == named
    named.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert private_folder(environment) == tmp_path / "pagewire" / "triton"
    assert f"others may write to {named}" in caplog.text
    assert (tmp_path / "pagewire" / "triton").stat().st_mode & 0o077 == 0


def test_no_folder_can_be_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        folder = private_folder({"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
    assert "compiled at every start" in caplog.text
    folder.rmdir()


def test_another_kind_of_cache_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    before = knobs.cache.manager_class
    with monkeypatch.context() as named:
        named.setenv("TRITON_CACHE_MANAGER", "module:Class")  # which Triton imports whenever it reads it
        kernel_cache.use_checked_cache.__wrapped__()
    assert knobs.cache.manager_class is before


COMPILE = """
import sys
from pathlib import Path
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.triton.kernel_cache import use_checked_cache

@triton.jit
def double(x, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(x + at, 2 * tl.load(x + at))

def compiled():
    source = ASTSource(double, {"x": "*fp32", "n": "constexpr"}, constexprs={"n": 64})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]

use_checked_cache()
first, folder = compiled(), Path(triton.knobs.cache.dir)
(kernel,) = folder.glob("*/*.cubin")
for file in sorted(kernel.parent.glob("double.*")):
    before = file.read_bytes()
    file.write_bytes(before[: len(before) // 2])
    assert compiled() == first, file
    assert file.read_bytes() == before, file
print(folder)
"""


def test_triton_compiles_again_what_is_torn(tmp_path: Path):
    """The compiler itself, without a device, over each file of a kernel."""
    script = tmp_path / "compile.py"  # Triton reads the source of a kernel
    script.write_text(COMPILE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    run = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(tmp_path / "pagewire" / "triton") and "is damaged" in run.stderr
