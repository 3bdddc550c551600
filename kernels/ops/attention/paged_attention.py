"""Attention of this step's queries over the paged KV cache, prefill and decode in one call.

    out[t, h] = sum_j p[j] * V[j, h // G],   p = softmax_j(scale * q[t, h] . K[j, h // G]),   G = H / K

for the query at position p of its row, over the row's KV positions j <= p: with a window those with
p - window < j, with chunks those with j // window = p // window.

query, out:             [T, H, D]; the rows of the step one after the other
key_cache, value_cache: [B, K, S, D], of the queries' dtype or e4m3 (kernels.ops.attention.e4m3)
block_tables:           [R, N]; position j of a row is at offset j % S of its block j // S

Why the cache is [B, K, S, D] and not [B, S, K, D]: what one head needs of one block is a single
tile of S * D values, contiguous. A kernel streams it without stride, whatever K is, and the gather
below copies whole tiles straight into the order in which the product reads them.

Products and sums are float32 inside torch's attention. Bytes moved: each row's keys and values
once per group of G heads; this plain variant reads, writes and reads them again, since it gathers.
kernels.cpu.attention.block_attention is the compiled variant for bfloat16 and float32 on CPUs,
kernels.triton.attention.paged_attention the one for CUDA.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F

from kernels.ops.attention.e4m3 import index_bytes
from kernels.ops.attention.gather_plan import GatherPlan


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch's operations on one thread for a while: with more, torch may cut a product's sums
    differently."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: GatherPlan,
    scale: float,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """[T, H, D] -> [T, H, D], contiguous. Zero for tokens that the plan leaves out: padding.

    soft_cap: scores become soft_cap * tanh(score / soft_cap). sinks: [H], the score of one more key of each
    head, whose value is zero.

    On a CPU 16-bit values are widened to float32: torch multiplies them very slowly there.
    """
    with one_thread() if plan.each_alone else nullcontext():
        return _attend_all(query, key_cache, value_cache, plan, scale, soft_cap, sinks)


def _attend_all(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: GatherPlan,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    widen = query.device.type == "cpu" and query.dtype.itemsize == 2
    num_heads, head_dim = query.shape[1:]
    num_kv_heads, block_size = key_cache.shape[1:3]
    per_kv = num_heads // num_kv_heads
    key_tiles = index_bytes(key_cache).view(-1, block_size * head_dim)
    value_tiles = index_bytes(value_cache).view(-1, block_size * head_dim)
    queries = query.view(-1, num_kv_heads, per_kv, head_dim)  # [T, K, G, D]
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device).view(queries.shape)
    if widen:
        queries = queries.float()
    by_head = None if sinks is None else sinks.to(queries.dtype).view(num_kv_heads, per_kv, 1)
    for group in plan.groups:
        size = group.mask.shape[0], num_kv_heads, group.mask.shape[3], head_dim
        keys = key_tiles.index_select(0, group.tiles).view(-1, head_dim)
        values = value_tiles.index_select(0, group.tiles).view(-1, head_dim)
        # The weights of these positions are 0, but what an earlier owner of the block left there
        # may be inf or NaN, and 0 * inf is NaN.
        keys.index_fill_(0, group.stale, 0)
        values.index_fill_(0, group.stale, 0)
        keys, values = (x.view(key_cache.dtype).to(queries.dtype) for x in (keys, values))
        # [R, K, G, D] x [R, K, L, D]: the heads that share a KV head stand where torch expects
        # the queries of one head.
        mask = group.mask.to(queries.dtype).expand(-1, 1, per_kv, -1)
        out[group.tokens] = _attend(
            queries[group.tokens], keys.view(size), values.view(size), mask, scale, soft_cap, by_head
        )
    for chunk in plan.chunks:
        size = num_kv_heads, 1, -1, head_dim
        keys = key_tiles.index_select(0, chunk.tiles).view(size)[:, :, : chunk.length]
        values = value_tiles.index_select(0, chunk.tiles).view(size)[:, :, : chunk.length]
        keys, values = (x.view(key_cache.dtype).to(queries.dtype) for x in (keys, values))
        # [K, G, C, D] x [K, G, L, D], the latter repeated by a stride of 0.
        result = _attend(
            queries[chunk.tokens].permute(1, 2, 0, 3),
            keys.expand(-1, per_kv, -1, -1),
            values.expand(-1, per_kv, -1, -1),
            chunk.mask.to(queries.dtype),
            scale,
            soft_cap,
            None if by_head is None else by_head[..., None],
        )
        out[chunk.tokens] = result.permute(2, 0, 1, 3)
    return out.view(query.shape)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """[..., Q, D], [..., L, D], [..., L, D], a mask that is added to the scores, and sinks [..., Q or 1, 1]
    -> [..., Q, D]."""
    if soft_cap is None and sinks is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    scores = query @ keys.transpose(-1, -2) * scale
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    scores = scores + mask
    if sinks is None:
        return scores.softmax(-1) @ values
    weights = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1).softmax(-1)
    return weights[..., :-1] @ values
