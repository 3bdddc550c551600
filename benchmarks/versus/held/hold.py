"""Makes a copy of a peer's environment whose libraries find AVX2 and nothing beyond it.

    python benchmarks/versus/held/hold.py /data/peers/vllm /data/peers/held-avx2/vllm torch/lib vllm

Variables hold some libraries to an instruction set (ATen, oneDNN), and not others (cpuinfo, OpenVINO). All
of them ask the CPUID instruction. In the copy its first byte is 06, which raises a signal, and
answer_cpuid.c, preloaded, answers. All other files are hard links. Needs nothing but Python 3.10 and objdump,
which tells the instruction from the same two bytes within another.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

CPUID, ILLEGAL = b"\x0f\xa2", b"\x06"
HEADER = re.compile(r"^ +\d+ \S+ +([0-9a-f]+) +([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]+) ")
FOUND = re.compile(r"^ *([0-9a-f]+):\t(?:[0-9a-f]{2} )*\s*cpuid\b", re.MULTILINE)


def hold(source: Path, target: Path, folders: Sequence[str]) -> None:
    """Copies an environment, and changes the libraries in these folders below its site-packages."""
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(source, unfinished, symlinks=True, copy_function=_link)
    (packages,) = unfinished.glob("lib/python3*/site-packages")
    for folder in folders:
        for library in sorted((packages / folder).glob("*.so*")):
            count = change(library)
            if count:
                print(f"{library.relative_to(packages)}: {count} CPUID instructions")
    unfinished.rename(target)


def _link(source: str, target: str) -> None:
    """A copy where the folder is on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def change(library: Path) -> int:
    """Replaces a library by one whose CPUID instructions are illegal; returns how many it had."""
    data = library.read_bytes()
    if CPUID not in data:
        return 0
    places = list(offsets(library))
    if not places:
        return 0
    changed = bytearray(data)
    for place in places:
        if changed[place : place + 2] != CPUID:
            raise ValueError(f"{library} has no CPUID instruction at {place:#x}")
        changed[place : place + 1] = ILLEGAL
    library.unlink()  # a link to the original, which must stay as it is
    library.write_bytes(changed)
    library.chmod(0o755)
    return len(places)


def offsets(library: Path) -> Iterator[int]:
    """Yields where in the file the CPUID instructions of a library are."""
    lines = _objdump("-h", library).splitlines()
    sections = [tuple(int(text, 16) for text in m.groups()) for m in map(HEADER.match, lines) if m]
    for match in FOUND.finditer(_objdump("-d", "--no-show-raw-insn", library, only="cpuid")):
        address = int(match[1], 16)
        # The first that has it: sections that are not loaded start at address 0, and come last.
        yield next(at + address - start for size, start, at in sections if start <= address < start + size)


def _objdump(*arguments: "str | Path", only: str = "") -> str:
    """Returns its output, or the lines of it that contain a text: a library of 400 MB gives gigabytes."""
    with subprocess.Popen(["objdump", *map(str, arguments)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = "".join(line for line in process.stdout if only in line)
    if process.returncode:
        raise ChildProcessError(f"objdump {' '.join(map(str, arguments))} ended with {process.returncode}")
    return text


if __name__ == "__main__":
    hold(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
