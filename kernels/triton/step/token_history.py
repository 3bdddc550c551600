"""The tokens that sequences have said, for penalties and bad words, on CUDA and without the host.

count_tokens, once for each sequence that begins:

    prompt[slot]     bit t set       for each t of tokens[: prompt_len]
    counts[slot, t]  += 1            for each t of tokens[prompt_len :]

record_tokens, in each step, for a < A, with r = rows[a], t = tokens[a] (0 where it is negative: there was no
token) and p = positions[r]:

    counts[count_slots[r], t]  += 1           where the row has such a slot: penalties
    outputs[output_slots[r], p] = t           where the row has such a slot: bad words
    positions[r]               += 1

tokens: [N] or [A], ids of the vocabulary, repeats welcome; counts: [S, V] int32; prompt: [S, ceil(V / 32)]
int32, bit t % 32 of word t // 32; rows: [A], all different but for padding, a row without slots whose
position means nothing; positions, count_slots, output_slots: [R] int32, a slot of -1: none; outputs: [S, P]
int32; a row that says more than P tokens is not recorded further. A slot that begins has zeros. Additions of
integers and bits are atomic, and their order changes nothing. Bytes moved: 12 * N and 40 * A: nothing beside
the launch. Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

BLOCK = 128
"""Tokens, or rows, per program: one per thread; a prompt of 8,192 tokens is 64 programs."""


@triton.jit(do_not_specialize=["slot", "prompt_len", "num_tokens"])
def _count_kernel(
    tokens,  # [N]
    counts,  # [S, V]
    prompt,  # [S, W]
    slot,
    prompt_len,
    num_tokens,
    vocab_size,
    num_words,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_tokens
    token = tl.load(tokens + at, mask=inside, other=0)
    row = tl.full([], 0, tl.int64) + slot
    said = inside & (at >= prompt_len)
    ones = tl.full([BLOCK], 1, tl.int32)
    tl.atomic_add(counts + row * vocab_size + token, ones, mask=said, sem="relaxed")
    words = prompt + row * num_words + token // 32
    tl.atomic_or(words, ones << (token % 32), mask=inside & (at < prompt_len), sem="relaxed")


def count_tokens(
    tokens: torch.Tensor, prompt_len: int, slot: int, counts: torch.Tensor, prompt: torch.Tensor
) -> None:
    """Counts tokens [N] in place."""
    assert counts.is_contiguous() and prompt.is_contiguous()
    if tokens.shape[0]:
        _count_kernel[(triton.cdiv(tokens.shape[0], BLOCK),)](
            tokens,
            counts,
            prompt,
            slot,
            prompt_len,
            tokens.shape[0],
            counts.shape[1],
            prompt.shape[1],
            BLOCK=BLOCK,
            num_warps=4,
        )


@dataclass(frozen=True)
class History:
    """The outputs of rows, as penalties and bad words need them."""

    positions: torch.Tensor  # [R] int32: output tokens of each row
    count_slots: torch.Tensor  # [R] int32
    output_slots: torch.Tensor  # [R] int32
    counts: torch.Tensor  # [S, V] int32
    outputs: torch.Tensor  # [S, P] int32


@triton.jit(do_not_specialize=["num_rows", "room"])
def _record_kernel(
    tokens,  # [A]
    rows,  # [A]
    positions,  # [R]
    count_slots,  # [R]
    output_slots,  # [R]
    counts,  # [S, V]
    outputs,  # [S, room]
    num_rows,
    vocab_size,
    room,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_rows
    row = tl.load(rows + at, mask=inside, other=0)
    token = tl.maximum(tl.load(tokens + at, mask=inside, other=0).to(tl.int32), 0)
    position = tl.load(positions + row, mask=inside, other=0)
    slot = tl.load(count_slots + row, mask=inside, other=-1).to(tl.int64)
    count = tl.load(counts + slot * vocab_size + token, mask=slot >= 0, other=0)
    tl.store(counts + slot * vocab_size + token, count + 1, mask=slot >= 0)
    slot = tl.load(output_slots + row, mask=inside, other=-1).to(tl.int64)
    tl.store(outputs + slot * room + position, token, mask=(slot >= 0) & (position < room))
    tl.store(positions + row, position + 1, mask=inside)


def record_tokens(tokens: torch.Tensor, rows: torch.Tensor, history: History) -> None:
    """Records tokens [A] of rows [A] in place."""
    num_rows = rows.shape[0]
    assert tokens.shape == rows.shape and history.counts.is_contiguous() and history.outputs.is_contiguous()
    if num_rows:
        _record_kernel[(triton.cdiv(num_rows, BLOCK),)](
            tokens,
            rows,
            history.positions,
            history.count_slots,
            history.output_slots,
            history.counts,
            history.outputs,
            num_rows,
            history.counts.shape[1],
            history.outputs.shape[1],
            BLOCK=BLOCK,
            num_warps=4,
        )
