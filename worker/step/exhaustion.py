"""Which errors say that memory does not suffice."""

import torch


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether an allocation has failed: in numpy, or in torch, which raises RuntimeError for that on
    the host."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
