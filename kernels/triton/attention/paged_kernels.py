"""The attention operations on CUDA, for modules that do not import triton themselves: those of
kernels.triton.attention.store_kv, kernels.triton.attention.paged_attention and
kernels.triton.attention.latent_attention."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kernels.triton.attention.fp8 import KVScales
    from kernels.triton.attention.store_kv import HeadNorms


@dataclass(frozen=True)
class PagedKernels:
    """Functions that change the cache in place; rotary_store_kv also changes the query."""

    store_kv: Callable[..., None]
    rotary_store_kv: Callable[..., None]
    head_norms: Callable[[torch.Tensor, torch.Tensor, float], "HeadNorms"]
    attend: Callable[..., torch.Tensor]
    unit_scales: Callable[[int, torch.device], "KVScales"]
    store_latents: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
    attend_to_latents: Callable[..., torch.Tensor]


def paged_kernels() -> PagedKernels:
    """Imports triton and returns the operations. Call it where kernels.triton.requirements.why_not() is
    None."""
    from kernels.triton.attention.fp8 import unit_scales
    from kernels.triton.attention.latent_attention import latent_attention, store_latents
    from kernels.triton.attention.paged_attention import paged_attention
    from kernels.triton.attention.store_kv import HeadNorms, rotary_store_kv, store_kv

    with_keys = store_kv, rotary_store_kv, HeadNorms, paged_attention, unit_scales
    return PagedKernels(*with_keys, store_latents, latent_attention)
