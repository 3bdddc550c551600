"""A process that is held to AVX2 finds no more than that, and one that uses more is seen."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.versus.catalog import HERE
from benchmarks.versus.held import hold
from benchmarks.versus.registers import registers_in_use, threads_with_avx512

needs_tools = pytest.mark.skipif(
    not (shutil.which("gcc") and shutil.which("objdump")) or os.uname().machine != "x86_64",
    reason="gcc and objdump, for x86-64",
)
has_avx512 = "avx512f" in Path("/proc/cpuinfo").read_text().split()
LIBRARY = """
#include <cpuid.h>
void ask(unsigned leaf, unsigned subleaf, unsigned *answer) {
    __cpuid_count(leaf, subleaf, answer[0], answer[1], answer[2], answer[3]);
}
const unsigned char the_same_bytes[] = {0x0f, 0xa2};
unsigned also_the_same_bytes(void) { return 0xa20f; }
void die(void) { __builtin_trap(); }
"""
ASK = """
import ctypes, faulthandler, json, sys
faulthandler.enable()
library = ctypes.CDLL(sys.argv[1])
answer = (ctypes.c_uint32 * 4)()
found = {}
for leaf, subleaf in ((0, 0), (7, 0), (7, 1), (0x24, 0)):
    library.ask(leaf, subleaf, answer)
    found[f"{leaf} {subleaf}"] = list(answer)
print(json.dumps(found))
assert library.also_the_same_bytes() == 0xA20F
if len(sys.argv) > 2:
    library.die()
"""
AVX2, AVX512 = 1 << 5, [16, 17, 21, 28, 30, 31]
"""Bits of leaf 7: of EBX."""


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A library, the same one in a copy of its environment that is held, and the library that answers."""
    folder = tmp_path_factory.mktemp("held")
    place = "lib/python3.11/site-packages/some/some.so"
    library, answers = folder / "one" / place, folder / "answers.so"
    library.parent.mkdir(parents=True)
    (folder / "some.c").write_text(LIBRARY)
    build = ["gcc", "-O1", "-shared", "-fPIC"]
    subprocess.run([*build, folder / "some.c", "-o", library], check=True)
    subprocess.run([*build, HERE / "held/answer_cpuid.c", "-ldl", "-o", answers], check=True)
    (library.parent / "text.so.py").write_text("unchanged")
    hold.hold(folder / "one", folder / "two", ["some", "absent"])
    return library, folder / "two" / place, answers


def ask(library: Path, *more: str, preload: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", ASK, library, *more],
        env=os.environ | {"LD_PRELOAD": preload},
        capture_output=True,
        text=True,
    )


@needs_tools
def test_a_held_library_finds_avx2_and_no_more(copies: tuple[Path, Path, Path]) -> None:
    """All that is below AVX-512 is as the CPU says; what it was copied from stays as it was."""
    library, held, answers = copies
    true, told = (json.loads(ask(each, preload=str(answers)).stdout) for each in (library, held))
    assert told["0 0"] == true["0 0"]
    assert told["7 0"][0] == true["7 0"][0] and told["7 0"][1] & AVX2 == true["7 0"][1] & AVX2
    assert not any(told["7 0"][1] >> bit & 1 for bit in AVX512)
    assert told["7 0"][1] & 0x1FF == true["7 0"][1] & 0x1FF
    assert told["7 1"][0] & 0x30 == 0 and told["36 0"] == [0, 0, 0, 0]
    if has_avx512:
        assert true["7 0"][1] >> 16 & 1


@needs_tools
def test_one_instruction_is_changed_and_no_other_bytes(copies: tuple[Path, Path, Path]) -> None:
    library, held, _ = copies
    before, after = library.read_bytes(), held.read_bytes()
    assert before.count(hold.CPUID) >= 3 and before.count(hold.CPUID) == after.count(hold.CPUID) + 1
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
    other = "text.so.py"
    assert (held.parent / other).samefile(library.parent / other)


@needs_tools
def test_other_illegal_instructions_are_fatal(copies: tuple[Path, Path, Path]) -> None:
    _, held, answers = copies
    assert ask(held, "die", preload=str(answers)).returncode < 0


@pytest.fixture
def runs() -> Iterator[Callable[[str], int]]:
    """Starts a process that executes some machine code, in hexadecimal, and waits; returns its id."""
    started = []
    code = """if True:
        import ctypes, mmap, sys
        code = bytes.fromhex(sys.argv[1]) + b"\\xc3"
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        print(flush=True)
        sys.stdin.read()
    """
    tunables = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW"}

    def start(machine_code: str) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", code, machine_code],
            env=os.environ | tunables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        process.communicate()
        assert process.returncode == 0, "it went on as before"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="registers of x86-64")
def test_what_runs_without_avx512_is_not_blamed(runs: Callable[[str], int]) -> None:
    pid = runs("")
    assert threads_with_avx512(pid) == {}
    assert registers_in_use(pid) & 2, "those of SSE are in use"


@pytest.mark.skipif(not has_avx512, reason="a CPU with AVX-512")
@pytest.mark.parametrize(
    ("machine_code", "registers"),
    [
        ("c5f446c9", ["mask registers"]),  # kxnorw k1, k1, k1
        ("62a35d4025e4ff", ["registers 16 to 31"]),  # vpternlogd zmm20, zmm20, zmm20, 255
    ],
)
def test_registers_of_avx512_are_seen(
    runs: Callable[[str], int], machine_code: str, registers: list[str]
) -> None:
    pid = runs(machine_code)
    ((thread, found),) = threads_with_avx512(pid).items()
    assert thread.startswith(f"{pid}/{pid} ") and found == registers
