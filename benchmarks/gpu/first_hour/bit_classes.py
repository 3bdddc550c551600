"""Which batches give a row the same bits. Pure, but for the probe's own work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch


@dataclass(frozen=True)
class Probe:
    """One row whose bits are compared."""

    name: str
    compute: Callable[[int, int], torch.Tensor]
    """(size, place): the row's result in a batch of that size, at that place; or in pieces of that size."""
    sizes: Sequence[int]
    places: bool = True  # whether the place in a batch is a parameter


def digest(result: torch.Tensor) -> str:
    """Of the bits."""
    return sha256(result.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def classes(probe: Probe) -> dict[str, Any]:
    """Returns sizes by equal bits, in order of their first size, and the sizes at which the first place and
    the last give different bits."""
    found: dict[str, list[int]] = {}
    moved, missing = [], {}
    for size in probe.sizes:
        try:
            first = digest(probe.compute(size, 0))
            last = digest(probe.compute(size, size - 1)) if probe.places and size > 1 else first
        except torch.OutOfMemoryError:
            missing[str(size)] = "out of memory"
            break
        found.setdefault(first, []).append(size)
        if last != first:
            moved.append(size)
    return {"name": probe.name, "classes": list(found.values()), "moved": moved, "missing": missing}
