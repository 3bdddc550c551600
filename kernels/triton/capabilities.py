"""What a program may take of a processor, by compute capability. Does not import triton.

Source: the table of technical specifications per compute capability in NVIDIA's CUDA C++ programming guide.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch

_REGISTERS = 65536


@dataclass(frozen=True)
class Capability:
    """Limits of one processor (streaming multiprocessor)."""

    number: int  # 90: compute capability 9.0
    shared_limit: int  # bytes of shared memory that one program may have
    shared: int  # bytes that all programs on a processor have together
    warps: int
    programs: int

    def __str__(self) -> str:
        return f"sm_{self.number}"

    def resident(self, registers: int, shared: int, warps: int) -> int:
        """Returns how many programs of these sizes fit on a processor at a time. registers: per thread."""
        by_registers = _REGISTERS // (32 * warps * -(-registers // 8) * 8)
        return min(by_registers, self.shared // (shared + 1024), self.warps // warps, self.programs)


_KIB = 1 << 10
CAPABILITIES = {
    one.number: one
    for one in (
        Capability(80, 163 * _KIB, 164 * _KIB, 64, 32),  # A100
        Capability(86, 99 * _KIB, 100 * _KIB, 48, 16),  # A10, RTX 3090
        Capability(89, 99 * _KIB, 100 * _KIB, 48, 24),  # L4, RTX 4090
        Capability(90, 227 * _KIB, 228 * _KIB, 64, 32),  # H100, H200
        Capability(100, 227 * _KIB, 228 * _KIB, 64, 32),  # B200
        Capability(120, 99 * _KIB, 100 * _KIB, 48, 24),  # RTX 5090
    )
}
DEFAULT = 90
"""Sizes are chosen for it where there is no device to ask."""
_without_device = DEFAULT


def limits_of(capability: tuple[int, int]) -> Capability:
    """Returns the limits of a compute capability (major, minor), or of the next lower one that is listed."""
    number = 10 * capability[0] + capability[1]
    return CAPABILITIES[max((known for known in CAPABILITIES if known <= number), default=80)]


def capability_of(device: torch.device) -> Capability:
    """Returns the limits of a device; of a host or meta device those that assume() names."""
    return _of_cuda_device(device) if device.type == "cuda" else CAPABILITIES[_without_device]


@lru_cache(maxsize=16)
def _of_cuda_device(device: torch.device) -> Capability:
    return limits_of(torch.cuda.get_device_capability(device))


@contextmanager
def assume(number: int) -> Iterator[Capability]:
    """Lets launchers choose sizes for this capability where tensors are on no CUDA device."""
    global _without_device
    before, _without_device = _without_device, number
    try:
        yield CAPABILITIES[number]
    finally:
        _without_device = before
