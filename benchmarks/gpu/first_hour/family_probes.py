"""What layers of experts, of latents and of weights in few bits compute besides, for row_equality."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.gpu.first_hour.bit_classes import Probe
from benchmarks.gpu.first_hour.probes import PRODUCTS, Maker, batches, last_tokens, ragged
from benchmarks.gpu.low_bits import random_low_bits
from benchmarks.gpu.works import BLOCK_SIZE, Setting
from kernels.ops.experts.routing import Routing
from kernels.triton.attention.latent_attention import latent_attention
from kernels.triton.elementwise.activation import gated_activation
from kernels.triton.experts.combine import combine
from kernels.triton.experts.dispatch import order_by_head, sort_by_expert
from kernels.triton.experts.grouped_linear import grouped_linear
from kernels.triton.experts.grouped_low_bit_linear import grouped_low_bit_linear
from kernels.triton.experts.route import route
from kernels.triton.matmul.linear import linear
from kernels.triton.matmul.low_bit_linear import low_bit_linear

EXPERTS, TOP_K, WIDTH, HIDDEN = 128, 8, 768, 2048
"""Of Qwen3-30B-A3B."""
HEADS, RANK, ROTARY, PLAIN = 16, 512, 64, 128
"""Of attention over latents: DeepSeek-V2-Lite, Youtu-LLM."""


def family_probes(setting: Setting, sizes: Sequence[int]) -> Iterator[Maker]:
    """By value: what sums differently for many rows first."""
    forms: dict[str, Callable[[Setting, str, Sequence[int]], Probe]] = {
        "experts, gate and up": partial(expert_product, HIDDEN, 2 * WIDTH),
        "experts, down": partial(expert_product, WIDTH, HIDDEN),
        "experts, from the router to the sum": expert_layer,
        "latents, decode": latent_decoding,
        "latents, prompt in pieces": latent_pieces,
        "latents, product by head": head_product,
        "8B product, down, in 4 bits": partial(low_bit_product, "int4-g128"),
        "8B product, down, in 8 bits": partial(low_bit_product, "e4m3"),
        "experts in 4 bits, gate and up": partial(low_bit_experts, "int4-g128"),
        "experts in 8 bits, gate and up": partial(low_bit_experts, "e4m3"),
        "experts in floats of 4 bits, gate and up": partial(low_bit_experts, "e2m1"),
    }
    for name, make in forms.items():
        yield name, partial(make, setting, name, sizes)


def _choices(setting: Setting, count: int, sizes: Sequence[int]) -> Callable[[int, int], torch.Tensor]:
    """Returns what makes the experts of each token, [size, k]: the probe's are the same at any place."""
    shape = max(sizes) + 1, count
    chosen = torch.rand(shape, device=setting.device).topk(min(TOP_K, count), -1).indices

    def choose(size: int, place: int) -> torch.Tensor:
        found = chosen[:size].clone()
        found[place] = chosen[-1]
        return found

    return choose


def expert_product(width: int, outputs: int, setting: Setting, name: str, sizes: Sequence[int]) -> Probe:
    """By the experts of each row."""
    count, width, outputs = setting.size(EXPERTS, 4), setting.size(width), setting.size(outputs)
    batch, choose = batches(setting, width, max(sizes)), _choices(setting, count, sizes)
    weight = setting.random(count, outputs, width)

    def compute(size: int, place: int) -> torch.Tensor:
        order = sort_by_expert(choose(size, place), count, setting.dtype)
        y = grouped_linear(batch(size, place), weight, None, order, order.tokens)
        return y[order.places[place].long()]

    return Probe(name, compute, sizes)


def low_bit_product(form: str, setting: Setting, name: str, sizes: Sequence[int]) -> Probe:
    """form: of benchmarks.gpu.low_bits.FORMS."""
    setting = _in_16_bits(setting)
    width, outputs = map(setting.size, PRODUCTS["8B"]["down"])
    batch, weight = batches(setting, width, max(sizes)), random_low_bits(setting, (outputs, width), form)
    return Probe(name, lambda size, place: low_bit_linear(batch(size, place), weight)[place], sizes)


def low_bit_experts(form: str, setting: Setting, name: str, sizes: Sequence[int]) -> Probe:
    """By the experts of each row. form: of benchmarks.gpu.low_bits.FORMS."""
    setting = _in_16_bits(setting)
    count, width, outputs = setting.size(EXPERTS, 4), setting.size(HIDDEN), setting.size(2 * WIDTH)
    batch, choose = batches(setting, width, max(sizes)), _choices(setting, count, sizes)
    weight = random_low_bits(setting, (count, outputs, width), form)

    def compute(size: int, place: int) -> torch.Tensor:
        most = weight.code.most_rows
        order = sort_by_expert(choose(size, place), count, setting.dtype, most_pairs=most)
        y = grouped_low_bit_linear(batch(size, place), weight, None, order, order.tokens)
        return y[order.places[place].long()]

    return Probe(name, compute, sizes)


def _in_16_bits(setting: Setting) -> Setting:
    """Returns a setting whose inputs weights in few bits can be multiplied with."""
    return replace(setting, dtype=torch.bfloat16)


def expert_layer(setting: Setting, name: str, sizes: Sequence[int]) -> Probe:
    """Router, choice, order, both products, activation and sum, as a layer has them."""
    count, width, hidden = setting.size(EXPERTS, 16), setting.size(WIDTH), setting.size(HIDDEN)
    batch = batches(setting, hidden, max(sizes))
    router = setting.random(count, hidden)
    gate_up, down = setting.random(count, 2 * width, hidden), setting.random(count, hidden, width)
    routing = Routing(num_experts=count, top_k=TOP_K, normalized=True)

    def compute(size: int, place: int) -> torch.Tensor:
        x = batch(size, place)
        weights, chosen = route(linear(x, router, None, True), None, routing)
        order = sort_by_expert(chosen, count, setting.dtype)
        gated = gated_activation(grouped_linear(x, gate_up, None, order, order.tokens), "silu")
        return combine(grouped_linear(gated, down, None, order), weights, order.places)[place]

    return Probe(name, compute, sizes)


def latent_decoding(setting: Setting, name: str, sizes: Sequence[int]) -> Probe:
    """One token of each row; the others' contexts have many lengths."""
    rank, width = _latent_sizes(setting)
    blocks, batch = ragged(setting, sizes)
    cache = setting.random(blocks, 1, BLOCK_SIZE, width)
    query, others = setting.random(1, HEADS, width), setting.random(max(sizes), HEADS, width)

    def compute(size: int, place: int) -> torch.Tensor:
        x = others[:size].clone()
        x[place] = query[0]
        return latent_attention(x, cache, batch(size, place), width**-0.5, rank)[place]

    return Probe(name, compute, sizes)


def latent_pieces(setting: Setting, name: str, sizes: Sequence[int]) -> Probe:
    """The last token of a prompt, computed with so many tokens before it; 1: as one that decodes."""
    rank, width = _latent_sizes(setting)
    length, batch = last_tokens(setting)
    cache = setting.random(-(-length // BLOCK_SIZE), 1, BLOCK_SIZE, width)
    query = setting.random(length, HEADS, width)

    def compute(size: int, place: int) -> torch.Tensor:
        return latent_attention(query[length - size :], cache, batch(size), width**-0.5, rank)[-1]

    usable = [size for size in sizes if size < length] + [length]
    return Probe(name, compute, usable, places=False)


def head_product(setting: Setting, name: str, sizes: Sequence[int]) -> Probe:
    """Brings each head's query into the space of latents."""
    rank, plain = setting.size(RANK), setting.size(PLAIN, 4)
    batch, weight = batches(setting, HEADS * plain, max(sizes)), setting.random(HEADS, rank, plain)

    def compute(size: int, place: int) -> torch.Tensor:
        order = order_by_head(size, HEADS, setting.dtype, setting.device)
        x = batch(size, place).view(-1, plain)
        return grouped_linear(x, weight, None, order, order.tokens).view(HEADS, size, rank)[:, place]

    return Probe(name, compute, sizes)


def _latent_sizes(setting: Setting) -> tuple[int, int]:
    """Returns the values of a latent, and with those of its rotary key."""
    rank = setting.size(RANK)
    return rank, rank + setting.size(ROTARY, 4)
