"""Counts of a sequence's tokens for the penalties of kernels.triton.sampling.adjust_logits, on CUDA.

    prompt[slot]     bit t set       for each t of tokens[: prompt_len]
    counts[slot, t]  += 1            for each t of tokens[prompt_len :]

tokens: [N] int32, ids of the vocabulary, repeats welcome; counts: [S, V] int32; prompt: [S, ceil(V / 32)]
int32, bit t % 32 of word t // 32. Both are added to: a slot that begins has zeros. Additions of integers and
bits are atomic, and their order changes nothing. Bytes moved: 12 * N. Once for each sequence that begins;
what it says afterwards is kernels.triton.step.record_tokens'. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

BLOCK = 128
"""Tokens per program: one per thread; a prompt of 8,192 is 64 programs."""


def count_tokens_reference(
    tokens: list[int], prompt_len: int, slot: int, counts: torch.Tensor, prompt: torch.Tensor
) -> None:
    """Counts in place, token by token."""
    for token in tokens[:prompt_len]:
        word = (int(prompt[slot, token // 32]) % (1 << 32)) | (1 << (token % 32))
        prompt[slot, token // 32] = word - (1 << 32) if word >= 1 << 31 else word
    for token in tokens[prompt_len:]:
        counts[slot, token] += 1


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
