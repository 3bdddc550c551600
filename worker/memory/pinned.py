"""Pinned host memory of exactly the size that is asked for.

torch rounds pinned memory up to a power of two: 40 GiB become 64. So large pieces are anonymous pages of our
own, which the CUDA driver is told to pin.
"""

import math
import mmap
from collections.abc import Sequence

import torch

NO_MEMORY = (OSError, ValueError, MemoryError, OverflowError, RuntimeError)
"""What mmap and the driver raise."""


def pinned_zeros(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns zeros in pinned memory, which lives as long as the tensor. Raises MemoryError."""
    num_bytes = math.prod(size) * dtype.itemsize
    if not num_bytes:
        return torch.zeros(tuple(size), dtype=dtype)
    try:
        pages = torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8)
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(runtime.cudaHostRegister(pages.data_ptr(), num_bytes, 0)))
    except NO_MEMORY as error:
        raise MemoryError(f"{num_bytes} bytes cannot be pinned: {error}") from error
    return pages.view(dtype).view(tuple(size))
