"""What attention layers call on CUDA, for those that do not import triton: the operations, and a step's plan.

The operations are those of kernels.triton.attention.store_kv and kernels.triton.attention.paged_attention.
Beside them the plan holds what the layers of a step share; it is on the device, and the same objects serve
every step that runs as a captured graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kernels.triton.attention.paged_attention import PagedBatch
    from kernels.triton.attention.store_kv import HeadNorms


@dataclass(frozen=True)
class PagedKernels:
    """The operations. They change the cache, and rotary_store_kv the query, in place."""

    store_kv: Callable[..., None]
    rotary_store_kv: Callable[..., None]
    head_norms: Callable[[torch.Tensor, torch.Tensor, float], "HeadNorms"]
    attend: Callable[..., torch.Tensor]


@dataclass(frozen=True)
class PagedPlan:
    """What the layers of one step with one window share."""

    kernels: PagedKernels
    batch: "PagedBatch"
    window: int | None

    def attend(
        self, query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """[T, H, D] -> [T, H, D], contiguous. Undefined for tokens behind the last row's."""
        return self.kernels.attend(query, key_cache, value_cache, self.batch, scale, self.window)


def paged_kernels() -> PagedKernels:
    """Call where kernels.triton.requirements.why_not() is None: it imports triton."""
    from kernels.triton.attention.paged_attention import paged_attention
    from kernels.triton.attention.store_kv import HeadNorms, rotary_store_kv, store_kv

    return PagedKernels(store_kv, rotary_store_kv, HeadNorms, paged_attention)
