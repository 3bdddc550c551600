"""Copies from the host to the device that do not wait."""

from typing import Any

import numpy.typing as npt
import torch


def upload(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copies values to the device, in the order of its stream. The caller must not change them afterwards.

    The copy goes through pinned memory, which torch keeps until it is done. (torch.tensor(values,
    device=...) copies from pageable memory, and waits until everything before it is done.)
    """
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
