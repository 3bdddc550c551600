"""The operations of a step, as layers call them, for row_equality."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from benchmarks.gpu.first_hour.bit_classes import Probe
from benchmarks.gpu.works import BLOCK_SIZE, Setting
from kernels.triton.attention.paged_attention import PagedBatch, paged_attention
from kernels.triton.elementwise.activation import gated_activation
from kernels.triton.elementwise.rms_norm import add_rms_norm
from kernels.triton_ops import TritonOps

Maker = tuple[str, Callable[[], Probe]]
PRODUCTS = {
    "8B": {"qkv": (4096, 6144), "output": (4096, 4096), "gate and up": (4096, 28672), "down": (14336, 4096)},
    "0.5B": {"qkv": (896, 1152), "output": (896, 896), "gate and up": (896, 9728), "down": (4864, 896)},
}
"""Inputs and outputs."""
HEADS = {"8B": (32, 8, 128), "0.5B": (14, 2, 64)}
"""Query heads, KV heads, head size."""
LENGTH = 1000
"""Of the row that is compared; and of the prompt whose last token is."""
LONGEST = 4096
MATES = 256
"""Most tokens of the others: 2047 of them have 2 GB of keys and values."""


def operation_probes(setting: Setting, sizes: Sequence[int]) -> Iterator[Maker]:
    """By value: attention and products of the larger model first."""
    for model, heads in HEADS.items():
        for name, make in (("decode", decoding), ("prompt in pieces", pieces)):
            yield (
                f"{model} attention, {name}",
                partial(make, setting, f"{model} attention, {name}", heads, sizes),
            )
        for part, (width, outputs) in PRODUCTS[model].items():
            name = f"{model} product, {part}"
            yield name, partial(product, setting, name, width, outputs, False, sizes)
        (width, outputs), name = PRODUCTS[model]["output"], f"{model} product, output, by library"
        yield name, partial(product, setting, name, width, outputs, False, sizes, by_library=True)
        width, vocabulary = (4096, 128256) if model == "8B" else (896, 151936)
        yield (
            f"{model} product, head",
            partial(product, setting, f"{model} product, head", width, vocabulary, True, sizes),
        )
    yield "8B norm", partial(norm, setting, sizes)
    yield "8B activation", partial(activation, setting, sizes)


def batches(setting: Setting, width: int, most: int) -> Callable[[int, int], torch.Tensor]:
    """Returns what makes the input [size, width] with the probe at its place."""
    row, others = setting.random(1, width), setting.random(most, width)

    def batch(size: int, place: int) -> torch.Tensor:
        x = others[:size].clone()
        x[place] = row[0]
        return x

    return batch


def product(
    setting: Setting,
    name: str,
    width: int,
    outputs: int,
    wide: bool,
    sizes: Sequence[int],
    by_library: bool = False,
) -> Probe:
    """wide: in float32, as the head. by_library: see kernels.triton_ops."""
    width, outputs = setting.size(width), setting.size(outputs)
    batch, weight = batches(setting, width, max(sizes)), setting.random(outputs, width)

    def compute(size: int, place: int) -> torch.Tensor:
        return TritonOps(by_library).linear(batch(size, place), weight, None, wide)[place]

    return Probe(name, compute, sizes)


def norm(setting: Setting, sizes: Sequence[int]) -> Probe:
    """With a residual."""
    width = setting.size(4096)
    batch, weight = batches(setting, width, max(sizes)), setting.random(width)

    def compute(size: int, place: int) -> torch.Tensor:
        x = batch(size, place)
        return torch.stack(add_rms_norm(x, x.clone(), weight, 1e-5))[:, place]

    return Probe("8B norm", compute, sizes)


def activation(setting: Setting, sizes: Sequence[int]) -> Probe:
    """Gated."""
    batch = batches(setting, 2 * setting.size(14336), max(sizes))
    return Probe(
        "8B activation", lambda size, place: gated_activation(batch(size, place), "silu")[place], sizes
    )


def _integers(setting: Setting, values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=setting.device)


def ragged(setting: Setting, sizes: Sequence[int]) -> tuple[int, Callable[[int, int], PagedBatch]]:
    """Returns how many blocks rows have, and what makes a batch of one token of each row, with the probe at
    its place: it has a context of LENGTH, and others have many lengths."""
    length, mates = setting.size(LENGTH, 70), setting.size(MATES, 20)
    own, theirs = -(-length // BLOCK_SIZE), -(-mates // BLOCK_SIZE)
    table = torch.arange(own, dtype=torch.int32, device=setting.device)

    def batch(size: int, place: int) -> PagedBatch:
        lengths = [1 + 37 * row % mates for row in range(size)]
        lengths[place] = length
        tables = torch.zeros(size, own, dtype=torch.int32, device=setting.device)
        tables[:, :theirs] = own + torch.arange(size * theirs, device=setting.device).view(size, theirs)
        tables[place] = table
        starts = torch.arange(size + 1, dtype=torch.int32, device=setting.device)
        # As the backend has it: the longest context that any row may have.
        return PagedBatch(starts, _integers(setting, lengths), tables, setting.size(LONGEST, length))

    return own + theirs * max(sizes), batch


def last_tokens(setting: Setting) -> tuple[int, Callable[[int], PagedBatch]]:
    """Returns the length of a prompt, and what makes a batch of its last tokens, so many."""
    length = setting.size(LENGTH, 70)
    tables = torch.arange(-(-length // BLOCK_SIZE), dtype=torch.int32, device=setting.device)[None]

    def batch(size: int) -> PagedBatch:
        starts, lengths = _integers(setting, [0, size]), _integers(setting, [length])
        return PagedBatch(starts, lengths, tables, setting.size(LONGEST, length))

    return length, batch


def decoding(setting: Setting, name: str, heads: tuple[int, int, int], sizes: Sequence[int]) -> Probe:
    """One token of each row; the others' contexts have many lengths."""
    query_heads, kv_heads, dim = heads
    blocks, batch = ragged(setting, sizes)
    key_cache, value_cache = (setting.random(blocks, kv_heads, BLOCK_SIZE, dim) for _ in range(2))
    query, others = setting.random(1, query_heads, dim), setting.random(max(sizes), query_heads, dim)

    def compute(size: int, place: int) -> torch.Tensor:
        x = others[:size].clone()
        x[place] = query[0]
        return paged_attention(x, key_cache, value_cache, batch(size, place), dim**-0.5)[place]

    return Probe(name, compute, sizes)


def pieces(setting: Setting, name: str, heads: tuple[int, int, int], sizes: Sequence[int]) -> Probe:
    """The last token of a prompt, computed with so many tokens before it; 1: as one that decodes."""
    query_heads, kv_heads, dim = heads
    length, batch = last_tokens(setting)
    blocks = -(-length // BLOCK_SIZE)
    key_cache, value_cache = (setting.random(blocks, kv_heads, BLOCK_SIZE, dim) for _ in range(2))
    query = setting.random(length, query_heads, dim)

    def compute(size: int, place: int) -> torch.Tensor:
        return paged_attention(query[length - size :], key_cache, value_cache, batch(size), dim**-0.5)[-1]

    usable = [size for size in sizes if size < length] + [length]
    return Probe(name, compute, usable, places=False)
