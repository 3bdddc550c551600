"""Attention of segments: every query sees every key of its own segment.

    out[t, h] = sum_j softmax_j(scale * q[t, h] . k[j, h]) v[j, h]      over the tokens j of t's segment

query, key, value, out: [T, H, D], of one dtype. On a CPU 16-bit values are widened to float32, as torch
multiplies them very slowly there, and torch has one thread: with more it may cut a product's sums
differently. Heads are read where they lie. Bytes moved: torch does not keep the scores.
kernels.cpu.attention.segments is the compiled variant for CPUs.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F

from kernels.ops.attention.paged_attention import one_thread


def full_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, lengths: Sequence[int] = ()
) -> torch.Tensor:
    """[T, H, D] each -> [T, H, D], contiguous. lengths: of the segments, one after the other; empty: there is
    one."""
    if len(lengths) > 1:
        queries, keys, values = (torch.split(each, list(lengths)) for each in (query, key, value))
        parts = zip(queries, keys, values, strict=True)
        return torch.cat([full_attention(q, k, v, scale) for q, k, v in parts])
    query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))  # [1, H, T, D]
    dtype, on_host = query.dtype, query.device.type == "cpu"
    if on_host and dtype.itemsize == 2:
        query, key, value = query.float(), key.float(), value.float()
    with one_thread() if on_host else nullcontext():
        found = F.scaled_dot_product_attention(query, key, value, scale=scale)
    return found[0].transpose(0, 1).to(dtype).contiguous()
