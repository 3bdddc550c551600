"""What becomes of a kernel's machine code."""

import ctypes

import pytest

pytest.importorskip("llvmlite")

from kernels.cpu.compiler import llvm
from kernels.cpu.compiler.cache import compiled
from kernels.cpu.compiler.llvm import Collector, HostLinker, current_linker, link_with
from scripts.object_file import ObjectFile

pytestmark = pytest.mark.cpu_kernels


def _double(x: int) -> int:
    return 2 * x


def test_code_for_another_processor_is_kept_and_not_called(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(llvm, "_linker", HostLinker())
    collector = Collector()
    link_with(collector)
    assert current_linker() is collector
    kernel = compiled(_double)
    (contents,) = collector.objects.values()
    assert any(symbol.name.endswith("_double") and symbol.section for symbol in ObjectFile(contents).symbols)
    with pytest.raises(RuntimeError, match="for a processor that this host is not"):
        kernel(2)


def test_code_for_this_processor_is_called():
    collector = Collector()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llvm, "_linker", collector)
        compiled(_double)
    ((name, contents),) = collector.objects.items()
    host = HostLinker()
    assert host.function(host.load(contents, name), [ctypes.c_int64] * 2)(21) == 42
