"""Makes a step's inputs from rows on the device, and appends sampled tokens to rows, without a round trip.

For rows i of the step, row[i] in the table computing count[i] tokens from position start[i] on:

    query_starts[i]  = count[0] + ... + count[i - 1]                lengths[i] = start[i] + count[i]
    tables[i]        = blocks[row[i]], as far as lengths[i] reaches
    for j < count[i], t = query_starts[i] + j, p = start[i] + j:
    token_ids[t]     = tokens[row[i], p]                            positions[t] = p
    slots[t]         = blocks[row[i], p // S] * S + p % S           prompts[t] = prompt_lens[row[i]]

What a graph has room for beyond the step's rows and tokens is padding: each such row has one token, token 0
at position 0 of a prompt of 1, that is stored nowhere (slot -1) and sees nothing (length 0), until there are
T tokens; rows beyond that have none. The last row of the graph, if it is such a row, has all that are left.

append_tokens, for sampled[a] >= 0 and row[a] of the table: tokens[row[a], length[row[a]]] = sampled[a], and
length[row[a]] += 1.

tokens: [rows, L] int32, blocks: [rows, N] int32, prompt_lens: [rows] int32, the rest as in
kernels.triton.attention.paged_attention. Bytes moved: 36 per token of the step and 8 * N per row: nothing
beside the launch. Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton.requirements import next_power_of_2

BLOCK = 256
"""Tokens, and entries of a block table, processed at a time."""


@dataclass(frozen=True)
class StepInputs:
    """The outputs, at the same addresses in each step. R rows and T tokens, with padding."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64
    prompts: torch.Tensor  # [T] int64: prompt tokens of the token's row
    query_starts: torch.Tensor  # [R + 1] int32
    lengths: torch.Tensor  # [R] int32
    block_tables: torch.Tensor  # [R, N] int32; undefined beyond a row's length


@triton.jit(do_not_specialize=["num_tokens"])
def _prepare_kernel(
    rows,  # [R']
    starts,  # [R']
    counts,  # [R']
    num_rows,  # [1]: R', at most R
    tokens,  # [rows, L]
    blocks,  # [rows, N]
    prompt_lens,  # [rows]
    token_ids,  # [T]
    positions,  # [T]
    slots,  # [T]
    prompts,  # [T]
    query_starts,  # [R + 1]
    lengths,  # [R]
    block_tables,  # [R, N]
    max_length,
    width,
    num_tokens,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0)
    real = tl.load(num_rows)
    all_rows = tl.arange(0, ROWS)
    before = (all_rows < i) & (all_rows < real)
    first = tl.sum(tl.load(counts + all_rows, mask=before, other=0), 0) + tl.maximum(i - real, 0)
    first = tl.minimum(first, num_tokens)
    tl.store(query_starts + i, first)
    if i >= real:
        end = tl.minimum(first + 1, num_tokens)
        if i == tl.num_programs(0) - 1:
            end = num_tokens
        tl.store(query_starts + i + 1, end)
        tl.store(lengths + i, 0)
        zeros = tl.zeros([BLOCK], tl.int64)
        for begin in range(first, end, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            inside = at < end
            tl.store(token_ids + at, zeros, mask=inside)
            tl.store(positions + at, zeros, mask=inside)
            tl.store(slots + at, zeros - 1, mask=inside)
            tl.store(prompts + at, zeros + 1, mask=inside)
        return
    row, start, count = tl.load(rows + i).to(tl.int64), tl.load(starts + i), tl.load(counts + i)
    tl.store(query_starts + i + 1, first + count)
    tl.store(lengths + i, start + count)
    for chunk in range(0, tl.cdiv(start + count, BLOCK_SIZE), BLOCK):
        at = chunk + tl.arange(0, BLOCK)
        inside = (at < tl.cdiv(start + count, BLOCK_SIZE)) & (at < width)
        entries = tl.load(blocks + row * width + at, mask=inside, other=0)
        tl.store(block_tables + i.to(tl.int64) * width + at, entries, mask=inside)
    prompt = tl.load(prompt_lens + row).to(tl.int64)
    for chunk in range(0, count, BLOCK):
        at = chunk + tl.arange(0, BLOCK)
        inside = at < count
        position = start + at
        block = tl.load(blocks + row * width + position // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        token = tl.load(tokens + row * max_length + position, mask=inside, other=0)
        tl.store(token_ids + first + at, token.to(tl.int64), mask=inside)
        tl.store(positions + first + at, position.to(tl.int64), mask=inside)
        tl.store(slots + first + at, block * BLOCK_SIZE + position % BLOCK_SIZE, mask=inside)
        tl.store(prompts + first + at, tl.broadcast_to(prompt, (BLOCK,)), mask=inside)


def prepare_inputs(
    rows: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    num_rows: torch.Tensor,
    tokens: torch.Tensor,
    blocks: torch.Tensor,
    prompt_lens: torch.Tensor,
    block_size: int,
    out: StepInputs,
) -> None:
    """Fills `out`, whose T is the sum of the counts, or more if there are more than num_rows rows. rows,
    starts, counts: [R] int32, of which the first num_rows, [1] int32, are valid. One program per row; a
    prompt of 8,192 tokens takes 32 iterations."""
    assert tokens.is_contiguous() and blocks.is_contiguous() and out.block_tables.is_contiguous()
    assert out.block_tables.shape[1] == blocks.shape[1]
    padded = out.lengths.shape[0]
    assert rows.shape == starts.shape == counts.shape == (padded,)
    if padded:
        _prepare_kernel[(padded,)](
            rows,
            starts,
            counts,
            num_rows,
            tokens,
            blocks,
            prompt_lens,
            out.token_ids,
            out.positions,
            out.slots,
            out.prompts,
            out.query_starts,
            out.lengths,
            out.block_tables,
            tokens.shape[1],
            blocks.shape[1],
            out.token_ids.shape[0],
            BLOCK_SIZE=block_size,
            ROWS=next_power_of_2(padded),
            BLOCK=BLOCK,
            num_warps=4,
        )


@triton.jit(do_not_specialize=["count"])
def _append_kernel(
    sampled,  # [A]
    rows,  # [A]
    tokens,  # [rows, L]
    lengths,  # [rows]
    count,
    num_rows,
    max_length,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(sampled + at, mask=at < count, other=-1)
    row = tl.load(rows + at, mask=at < count, other=0).to(tl.int64)
    there = (token >= 0) & (row < num_rows)
    length = tl.load(lengths + row, mask=there, other=0)
    fits = there & (length < max_length)
    tl.store(tokens + row * max_length + length, token.to(tl.int32), mask=fits)
    tl.store(lengths + row, length + 1, mask=fits)


def append_tokens(
    sampled: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor
) -> None:
    """Appends sampled [A] int64 tokens to distinct rows [A]. lengths: [rows] int32, tokens of each row,
    changed in place. A full row is not changed; a number that no row has is padding, and may be repeated."""
    assert tokens.is_contiguous()
    count, sizes = sampled.shape[0], (lengths.shape[0], tokens.shape[1])
    if count:
        grid = (triton.cdiv(count, BLOCK),)
        _append_kernel[grid](sampled, rows, tokens, lengths, count, *sizes, BLOCK, num_warps=4)
