"""The assembler that makes machine code of what Triton compiles.

Triton 3.7 has two: ptxas 12.8 for devices below 10.0, and 13.1 for those from there on. From the same PTX for
Hopper, 12.8 makes kernels with wrong numbers and an invalid write to shared memory (pull requests 988 and
1262 of flash-linear-attention, found with this version of Triton on an H20), 13.1 does not. So 13.1 assembles
for Hopper as well. Its code needs a driver of CUDA 13, which a torch built with CUDA 13 needs anyway.
"""

import os
import re
import subprocess
from pathlib import Path

import torch
from triton import knobs

_HOPPER = 9
_LEAST_CUDA = 13
_NAMED = "TRITON_PTXAS_PATH" in os.environ
"""Whether the environment names an assembler, before choose_assembler() does."""
_OLDER, _NEWER = knobs.nvidia.ptxas.path, knobs.nvidia.ptxas_blackwell.path
ASSEMBLERS: tuple[str, str] = (_OLDER, _NEWER)
"""Paths of both."""


def choose_assembler(capability: tuple[int, int], cuda: str | None = torch.version.cuda) -> str:
    """Chooses the assembler for a compute capability, before anything is compiled, and returns its version.

    cuda: the CUDA version of torch; None: torch has none, and what is compiled is not launched. An assembler
    that the environment names (TRITON_PTXAS_PATH) is kept.
    """
    major = capability[0]
    if major > _HOPPER:
        return version_of(_NEWER)
    newer = major == _HOPPER and (cuda is None or int(cuda.split(".")[0]) >= _LEAST_CUDA)
    path = _NEWER if newer and not _NAMED else _OLDER
    knobs.nvidia.ptxas = path
    return version_of(path)


def version_of(tool: str | Path) -> str:
    """Returns the version of an assembler, such as 13.1.80."""
    text = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    return found[1] if found else text.strip()
