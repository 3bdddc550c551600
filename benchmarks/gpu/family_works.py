"""Experts and attention over latents for benchmarks/gpu/kernels.py. Torch has no kernel for either: its way
is a product for each expert that has tokens, which the host must count, with weights in 16 bits where ours
have fewer; and attention with one KV head whose values are a part of its keys."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.gpu.low_bits import random_low_bits
from benchmarks.gpu.works import BLOCK_SIZE, Setting, Work
from kernels.triton.attention.latent_attention import latent_attention
from kernels.triton.attention.paged_attention import PagedBatch
from kernels.triton.elementwise.activation import gated_activation
from kernels.triton.experts.combine import combine
from kernels.triton.experts.dispatch import ExpertOrder, sort_by_expert
from kernels.triton.experts.grouped_linear import grouped_linear
from kernels.triton.experts.grouped_low_bit_linear import grouped_low_bit_linear
from kernels.triton.matmul.low_bit_weight import LowBitWeight

EXPERTS, TOP_K, WIDTH, HIDDEN = 128, 8, 768, 2048
"""Of Qwen3-30B-A3B."""
HEADS, RANK, ROTARY = 16, 512, 64
"""Of Youtu-LLM and DeepSeek-V2-Lite."""


def family_works(setting: Setting) -> Iterator[Callable[[], Work]]:
    """Products of experts by tokens, latents by rows and length."""
    for tokens in (1, 32, 512, 8192):
        yield partial(experts, setting, setting.size(tokens))
    for form in ("int4-g128", "e4m3", "e2m1"):
        for tokens in (1, 32, 512):
            yield partial(experts, setting, setting.size(tokens), form)
    for rows, length in ((1, 4096), (32, 1024), (32, 4096)):
        yield partial(latents, setting, setting.size(rows), setting.size(length, 65))


def experts(setting: Setting, tokens: int, form: str = "") -> Work:
    """Both products of all pairs, with the activation between them. The bytes are those of the experts that
    some token has. form: of weights, in benchmarks.gpu.low_bits.FORMS; empty: in 16 bits."""
    count, width, hidden = setting.size(EXPERTS, 16), setting.size(WIDTH), setting.size(HIDDEN)
    x = setting.random(tokens, hidden)
    first, gate_up = _weights(setting, (count, 2 * width, hidden), form)
    second, down = _weights(setting, (count, hidden, width), form)
    most = first.code.most_rows if isinstance(first, LowBitWeight) else 1 << 62
    chosen = torch.rand(tokens, count, device=setting.device).topk(TOP_K, -1).indices
    weights = torch.full((tokens, TOP_K), 1 / TOP_K, device=setting.device)

    def ours() -> torch.Tensor:
        order = sort_by_expert(chosen, count, setting.dtype, most_pairs=most)
        gated = gated_activation(_multiply(x, first, 2 * width, order, order.tokens), "silu")
        return combine(_multiply(gated, second, hidden, order), weights, order.places)

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
        f"experts{f' in {form}' if form else ''}, {TOP_K} of {count}, {tokens} tokens",
        ours,
        theirs,
        num_bytes=len(met) * (first.nbytes + second.nbytes) // count + 2 * x.nbytes,
    )


def _weights(
    setting: Setting, shape: tuple[int, int, int], form: str
) -> tuple[torch.Tensor | LowBitWeight, torch.Tensor]:
    """Returns random weights [N, F, K] of experts in a form, and in 16 bits."""
    if not form:
        plain = setting.random(*shape)
        return plain, plain
    packed = random_low_bits(setting, shape, form)
    return packed, packed.values().to(setting.dtype).contiguous()


def _multiply(
    x: torch.Tensor,
    weight: torch.Tensor | LowBitWeight,
    features: int,
    order: ExpertOrder,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """[R, K] -> [P, F], by expert. rows: of x, by pair; None: x is sorted as pairs are."""
    if isinstance(weight, LowBitWeight):
        return grouped_low_bit_linear(x, weight, None, order, rows)
    return grouped_linear(x, weight, None, order, rows)


def latents(setting: Setting, rows: int, length: int) -> Work:
    """A decode step, in the absorbed form."""
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
