"""What the report says of device and software, and what is refused before anything runs."""

import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
QUERY = (
    "driver_version,memory.total,memory.used,power.limit,clocks.max.sm,clocks.max.mem,ecc.mode.current"
    ",mig.mode.current"
)
"""Of nvidia-smi."""


class Refused(Exception):
    """Why nothing is run, in one line."""


def device_facts(device: str) -> dict[str, Any]:
    """Returns names and versions. Raises Refused without a card that the kernels are for."""
    import torch
    import triton

    from kernels.triton.requirements import LEAST_CAPABILITY

    facts: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__, "commit": commit()}
    if device == "cpu":
        return facts | {"device": "CPU, Triton's interpreter"}
    if not torch.cuda.is_available():
        raise Refused("torch finds no CUDA device; --device cpu tries the parts out without one")
    capability, name = torch.cuda.get_device_capability(0), torch.cuda.get_device_name(0)
    if capability < LEAST_CAPABILITY:
        has = ".".join(map(str, capability))
        raise Refused(f"{name} has compute capability {has}; 8.0 (A100) and later are supported")
    from kernels.triton.assembler import choose_assembler

    properties = torch.cuda.get_device_properties(0)
    return facts | {
        "device": name,
        "capability": ".".join(map(str, capability)),
        "processors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / (1 << 30), 1),
        "cuda": torch.version.cuda,
        "ptxas": choose_assembler(capability),
        **nvidia_smi(),
    }


def nvidia_smi() -> dict[str, str]:
    """Returns what the driver says of the first device; nothing where the tool is missing."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader", "--id=0"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = run.stdout.strip().split(", ")
    names = QUERY.split(",")
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else {}


def commit() -> str:
    """Returns the commit that is measured, with a + where files differ from it; "" outside a repository."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
