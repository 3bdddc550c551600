"""From the host to the device without a wait."""

from typing import Any

import numpy.typing as npt
import torch


def upload(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The values on the device, in the order of its stream. They must not change any more.

    They go through pinned memory, which torch keeps until they have been copied. (torch.tensor(values,
    device=...) copies from ordinary memory, and waits until everything before it is done.)
    """
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
