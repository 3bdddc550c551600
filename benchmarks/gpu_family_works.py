"""Experts and attention over latents for benchmarks/gpu_kernels.py. Torch has no kernel for either: its way
is a product for each expert that has tokens, which the host must count, and attention with one KV head whose
values are a part of its keys."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.gpu_works import BLOCK_SIZE, Setting, Work

EXPERTS, TOP_K, WIDTH, HIDDEN = 128, 8, 768, 2048
"""Of Qwen3-30B-A3B."""
HEADS, RANK, ROTARY = 16, 512, 64
"""Of Youtu-LLM and DeepSeek-V2-Lite."""


def family_works(setting: Setting) -> Iterator[Callable[[], Work]]:
    """Products of experts by tokens, latents by rows and length."""
    for tokens in (1, 32, 512, 8192):
        yield partial(experts, setting, setting.size(tokens))
    for rows, length in ((1, 4096), (32, 1024), (32, 4096)):
        yield partial(latents, setting, setting.size(rows), setting.size(length, 65))


def experts(setting: Setting, tokens: int) -> Work:
    """Both products of all pairs, with the activation between them. The bytes are those of the experts that
    some token has."""
    from kernels.triton.elementwise.activation import gated_activation
    from kernels.triton.experts.combine import combine
    from kernels.triton.experts.dispatch import sort_by_expert
    from kernels.triton.experts.grouped_linear import grouped_linear

    count, width, hidden = setting.size(EXPERTS, 16), setting.size(WIDTH), setting.size(HIDDEN)
    x = setting.random(tokens, hidden)
    gate_up, down = setting.random(count, 2 * width, hidden), setting.random(count, hidden, width)
    chosen = torch.rand(tokens, count, device=setting.device).topk(TOP_K, -1).indices
    weights = torch.full((tokens, TOP_K), 1 / TOP_K, device=setting.device)

    def ours() -> torch.Tensor:
        order = sort_by_expert(chosen, count, setting.dtype)
        gated = gated_activation(grouped_linear(x, gate_up, None, order, order.tokens), "silu")
        return combine(grouped_linear(gated, down, None, order), weights, order.places)

    # What a graph may hold: which rows an expert has is counted before.
    rows = [(chosen == expert).any(-1).nonzero().flatten() for expert in range(count)]
    met = [expert for expert in range(count) if len(rows[expert])]

    def theirs() -> torch.Tensor:
        out = torch.zeros(tokens, hidden, dtype=torch.float32, device=setting.device)
        for expert in met:
            gate, up = F.linear(x[rows[expert]], gate_up[expert]).chunk(2, -1)
            y = F.linear(F.silu(gate) * up, down[expert])
            out.index_add_(0, rows[expert], y.float() / TOP_K)
        return out.to(setting.dtype)

    return Work(
        f"experts, {TOP_K} of {count}, {tokens} tokens",
        ours,
        theirs,
        num_bytes=len(met) * (gate_up[0].nbytes + down[0].nbytes) + 2 * x.nbytes,
    )


def latents(setting: Setting, rows: int, length: int) -> Work:
    """A decode step, in the absorbed form."""
    from kernels.triton.attention.latent_attention import latent_attention
    from kernels.triton.attention.paged_attention import PagedBatch

    rank = setting.size(RANK, 16)
    width = rank + setting.size(ROTARY, 4)
    blocks = -(-length // BLOCK_SIZE)
    cache = setting.random(rows * blocks, 1, BLOCK_SIZE, width)
    query = setting.random(rows, HEADS, width)
    integers = {"dtype": torch.int32, "device": setting.device}
    tables = torch.randperm(rows * blocks, device=setting.device).view(rows, blocks).to(torch.int32)
    starts, lengths = torch.arange(rows + 1, **integers), torch.full((rows,), length, **integers)
    batch, scale = PagedBatch(starts, lengths, tables, length), width**-0.5
    keys = cache[tables.long()].reshape(rows, 1, -1, width)[:, :, :length].contiguous()

    def theirs() -> torch.Tensor:
        out = F.scaled_dot_product_attention(
            query.unsqueeze(2), keys, keys[..., :rank], scale=scale, enable_gqa=True
        )
        return out.squeeze(2)

    return Work(
        f"latents decode {rows} x {length}",
        lambda: latent_attention(query, cache, batch, scale, rank),
        theirs,
        num_bytes=keys.nbytes + 2 * query.nbytes,
    )
