"""What the GPU kernels take of a processor: registers, spills, shared memory. Needs no GPU.

    python -m benchmarks.gpu_compile                  # a table, all configurations
    python -m benchmarks.gpu_compile --json -         # the same as JSON
    python -m benchmarks.gpu_compile --only attention

Each launcher is called as the models' shapes have it, on tensors without memory, and compiles for sm_90
(H100, H200) instead of launching: kernels.gpu.offline. Exits with 1 if a kernel spills, or has more shared
memory than there is.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True)
class Heads:
    """Of a model's attention."""

    query: int
    kv: int
    dim: int
    models: str


HEADS = [
    Heads(32, 8, 128, "Llama-3-8B"),
    Heads(14, 2, 64, "Qwen2.5-0.5B"),
    Heads(32, 32, 80, "Phi-2"),
    Heads(32, 32, 96, "Phi-3-mini"),
    Heads(16, 8, 256, "Gemma-2-9B"),
    Heads(71, 1, 64, "Falcon-7B"),
]
Launch = Callable[[], Any]


def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Shape, strides and dtype, no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def attention(
    heads: Heads,
    dtype: torch.dtype,
    rows: int,
    decode: bool,
    block_size: int = 16,
    window: int | None = None,
    soft_cap: float | None = None,
) -> None:
    """rows: as many as fill an H200 without splits, or fewer."""
    from kernels.gpu.paged_attention import PagedBatch, paged_attention

    tokens = rows if decode else 1024
    query = empty(tokens, heads.query, heads.dim, dtype=dtype)
    cache = empty(512, heads.kv, block_size, heads.dim, dtype=dtype)
    decodes = rows if decode else 0
    batch = PagedBatch(empty(rows + 1), empty(rows), empty(rows, 64), decodes, decodes, 4096)
    paged_attention(query, cache, cache, batch, 0.1, window, soft_cap)


def attention_launches() -> Iterator[tuple[str, Launch]]:
    """Decode in splits and without, prefill; by heads, dtype, block size and option."""
    for heads in HEADS:
        for dtype in (BF16, FP32):
            name = f"{_short(dtype)} {heads.query}/{heads.kv} x {heads.dim}"
            yield f"decode {name}", partial(attention, heads, dtype, 512, True)
            yield f"decode, splits {name}", partial(attention, heads, dtype, 2, True)
            yield f"prefill {name}", partial(attention, heads, dtype, 2, False)
    for what, decode, rows in (("decode", True, 512), ("prefill", False, 2)):
        make = partial(attention, HEADS[0], rows=rows, decode=decode)
        yield f"{what} fp16 32/8 x 128", partial(make, dtype=FP16)
        yield f"{what} bf16 32/8 x 128, blocks of 64", partial(make, dtype=BF16, block_size=64)
        yield f"{what} bf16 32/8 x 128, window", partial(make, dtype=BF16, window=1000)
        capped = partial(attention, HEADS[4], BF16, rows, decode)
        yield f"{what} bf16 16/8 x 256, cap", partial(capped, soft_cap=50.0)
        yield f"{what} bf16 16/8 x 256, window, cap", partial(capped, window=1000, soft_cap=50.0)


def row_launches() -> Iterator[tuple[str, Launch]]:
    """Norms by width, activations by kind, rotation and store by head size, copies."""
    from kernels.gpu.activation import gated_activation
    from kernels.gpu.copy_blocks import gather_blocks, scatter_blocks
    from kernels.gpu.rms_norm import add_rms_norm, rms_norm
    from kernels.gpu.store_kv import rotary_store_kv, store_kv

    for dtype in (BF16, FP32):
        for width in (896, 4096, 8192):
            x, weight = empty(32, width, dtype=dtype), empty(width, dtype=dtype)
            yield f"rms_norm {_short(dtype)} {width}", partial(rms_norm, x, weight, 1e-5)
            yield f"add_rms_norm {_short(dtype)} {width}", partial(add_rms_norm, x, x, weight, 1e-5)
        for kind in ("silu", "gelu", "gelu_new", "relu"):
            gate_up = empty(32, 28672, dtype=dtype)
            yield f"gated {kind} {_short(dtype)}", partial(gated_activation, gate_up, kind)
        cache, ids = empty(32, 2, 512, 8, 16, 128, dtype=dtype), empty(4, dtype=torch.int64)
        yield f"gather_blocks {_short(dtype)}", partial(gather_blocks, cache, ids)
        yield (
            f"scatter_blocks {_short(dtype)}",
            partial(scatter_blocks, cache, empty(4, 32, 2, 8, 16, 128, dtype=dtype), ids),
        )
    for heads in HEADS:
        qkv = empty(32, heads.query + 2 * heads.kv, heads.dim, dtype=BF16)
        query, key, value = qkv.split([heads.query, heads.kv, heads.kv], 1)
        angles, slots = empty(32, heads.dim, dtype=FP32), empty(32, dtype=torch.int64)
        cache = empty(512, heads.kv, 16, heads.dim, dtype=BF16)
        name = f"bf16 {heads.query}/{heads.kv} x {heads.dim}"
        yield (
            f"rotary_store_kv {name}",
            partial(rotary_store_kv, query, key, value, angles, angles, slots, cache, cache),
        )
    yield f"store_kv {name}", partial(store_kv, key, value, slots, cache, cache)


def sampler_launches() -> Iterator[tuple[str, Launch]]:
    """By vocabulary: the number of tiles is a constant of the kernels; and what comes before."""
    from kernels.gpu.adjust_logits import Adjustments, adjust_logits
    from kernels.gpu.filtered_sample import Filters, filtered_sample
    from kernels.gpu.philox import uniforms
    from kernels.gpu.prepare_inputs import StepInputs, append_tokens, prepare_inputs
    from kernels.gpu.sample import Draws, argmax, sample
    from kernels.gpu.tile_stats import GROUP, TILE, TileStats, tile_stats
    from kernels.gpu.token_logprobs import token_logprobs
    from kernels.gpu.top_n import top_n

    rows = 32
    numbers, shares = empty(rows), empty(rows, dtype=FP32)
    seeds = empty(rows, dtype=torch.int64)
    draws, filters = Draws(shares, seeds, numbers, numbers), Filters(numbers, shares, shares)
    yield "uniforms", partial(uniforms, seeds, numbers, numbers)
    blocks, out = empty(512, 512), StepInputs(*(seeds,) * 3, empty(rows + 1), numbers, empty(rows, 512))
    columns = numbers, numbers, numbers, empty(1), empty(512, 8192), blocks, 16, out
    yield "prepare_inputs", partial(prepare_inputs, *columns)
    yield "append_tokens", partial(append_tokens, seeds, seeds, empty(512, 8192), empty(512))
    for vocab_size in (32000, 128256, 151936):
        logits, words = empty(rows, vocab_size, dtype=FP32), empty(8, -(-vocab_size // 32))
        biased = empty(8, 300), empty(8, 300, dtype=FP32), empty(8)
        state = Adjustments(empty(8, 3, dtype=FP32), empty(8, vocab_size), words, *biased)
        masked = Adjustments(state.strengths, state.counts, words, *biased, words)
        tiles = -(-vocab_size // TILE)
        groups, mass = empty(rows, tiles * TILE // GROUP, dtype=FP32), empty(rows, tiles, dtype=torch.float64)
        stats = TileStats(empty(rows, tiles, dtype=FP32), empty(rows, tiles), mass, groups)
        yield f"argmax {vocab_size}", partial(argmax, logits)
        yield f"sample {vocab_size}", partial(sample, logits, draws)
        yield f"tile_stats with groups {vocab_size}", partial(tile_stats, logits, shares, True)
        filtered = partial(filtered_sample, logits, draws, filters, stats, seeds)
        yield f"filtered_sample {vocab_size}", filtered
        yield f"adjust_logits {vocab_size}", partial(adjust_logits, logits, numbers, numbers, state)
        yield f"adjust_logits, mask {vocab_size}", partial(adjust_logits, logits, numbers, numbers, masked)
        yield f"top_n 1 {vocab_size}", partial(top_n, logits, 1)
        yield f"top_n 20 {vocab_size}", partial(top_n, logits, 20)
        yield f"token_logprobs {vocab_size}", partial(token_logprobs, logits, empty(rows, 21))


def launches() -> list[tuple[str, Launch]]:
    """Everything, by name."""
    return [*attention_launches(), *row_launches(), *sampler_launches()]


def compile_share(part: int, parts: int, only: str) -> list[dict[str, Any]]:
    """Every parts-th launch: what a process of its own does."""
    from kernels.gpu.offline import compiling

    chosen = [(name, launch) for name, launch in launches() if only in name]
    rows = []
    for name, launch in chosen[part::parts]:
        with compiling() as compiled:
            launch()
        rows += [asdict(one) | {"launch": name, "programs": one.programs} for one in compiled]
    return rows


def compile_all(jobs: int, only: str = "") -> list[dict[str, Any]]:
    """A row per launch and kernel, in order of names."""
    shares = [(part, jobs, only) for part in range(jobs)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        rows = [row for share in pool.map(compile_share, *zip(*shares, strict=True)) for row in share]
    return sorted(rows, key=lambda row: (row["name"], row["launch"]))


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """In Markdown."""
    yield "| kernel | launch | warps | stages | registers | spilled | shared | programs | products |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    for row in rows:
        columns = (
            row["name"].strip("_").removesuffix("_kernel"),
            row["launch"],
            row["warps"],
            row["stages"],
            row["registers"],
            row["spilled"],
            f"{row['shared'] / 1024:.1f} KB",
            row["programs"],
            row["products"],
        )
        yield "| " + " | ".join(map(str, columns)) + " |"


def _short(dtype: torch.dtype) -> str:
    return {BF16: "bf16", FP16: "fp16", FP32: "fp32"}[dtype]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write the figures there; -: to standard output, without the table")
    parser.add_argument("--only", default="", help="launches with this in their name")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.exit(1, "TRITON_INTERPRET=1 is set: Triton interprets and does not compile\n")
    from kernels.gpu.offline import SHARED_LIMIT

    rows = compile_all(options.jobs, options.only)
    if options.json == "-":
        json.dump(rows, sys.stdout, indent=1)
    else:
        print(*table(rows), sep="\n")
        if options.json:
            with open(options.json, "w") as file:
                json.dump(rows, file, indent=1)
    if any(row["spilled"] or row["shared"] > SHARED_LIMIT for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
