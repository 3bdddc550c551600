"""Penalties, bias and an allowed set for the logits of some rows on CUDA, in one pass, in place.

    x <- x / r  where x > 0,  x * r  elsewhere      tokens of the prompt or the output
    x <- x - f * count - p * (count > 0)            tokens of the output
    x <- x + bias                                   tokens that have one
    x <- -inf                                       tokens that the mask leaves out

in float32 and in this order: kernels.ops.sampling.logits_processors.penalties,
kernels.ops.sampling.logits_processors.add_logit_bias and kernels.ops.sampling.token_masks, whose results
these are, bit for bit. The history of a row is dense here, not a list: counts [S, V] int32 and a bit per
token of the prompt, so that nothing grows with the length of a sequence, and no two programs write the same
token.

logits: [A, V] float32, rows contiguous; of them U are adjusted. slots: [U], where a row's state lies; -1: it
has none, and stays as it is.
masks: [S, ceil(V / 32)] int32, bit i % 32 of word i // 32 for token i; a grammar's bitmask is one.
Bytes moved: 12 * V per adjusted row (logits read and written, counts), and two bits per token.
Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Logits per program: a load of 16 bytes per thread of 8 warps, for logits and for counts."""


@dataclass(frozen=True)
class Adjustments:
    """The state of S slots. Biased ids of one slot are distinct."""

    strengths: torch.Tensor  # [S, 3] float32: repetition, frequency, presence; (1, 0, 0): none
    counts: torch.Tensor  # [S, V] int32: of each token in the output
    prompt: torch.Tensor  # [S, ceil(V / 32)] int32
    bias_ids: torch.Tensor  # [S, N] int32
    bias: torch.Tensor  # [S, N] float32
    num_biased: torch.Tensor  # [S] int32: how many of N count
    allowed: torch.Tensor | None = None  # [S, ceil(V / 32)] int32; None: all, of all slots


@triton.jit
def _bits(words, ids, inside):
    """Returns whether the bits of tokens ids [N] are set."""
    word = tl.load(words + ids // 32, mask=inside, other=0)
    return ((word >> (ids % 32)) & 1) != 0


@triton.jit(do_not_specialize=["most_biased"])
def _adjust_kernel(
    logits,  # [A, V]
    batch_index,  # [U]
    slots,  # [U]
    strengths,  # [S, 3]
    counts,  # [S, V]
    prompt,  # [S, W]
    bias_ids,  # [S, N]
    bias,  # [S, N]
    num_biased,  # [S]
    allowed,  # [S, W]
    stride,
    vocab_size,
    num_words,
    most_biased,
    HAS_MASK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    user, first = tl.program_id(0), tl.program_id(1) * BLOCK
    row, slot = tl.load(batch_index + user).to(tl.int64), tl.load(slots + user).to(tl.int64)
    if slot < 0:
        return
    ids = first + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    x = tl.load(logits + row * stride + ids, mask=inside, other=0.0)
    repetition, frequency = tl.load(strengths + 3 * slot), tl.load(strengths + 3 * slot + 1)
    presence = tl.load(strengths + 3 * slot + 2)
    count = tl.load(counts + slot * vocab_size + ids, mask=inside, other=0)
    said = (count > 0) | _bits(prompt + slot * num_words, ids, inside)
    penalized = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    x = tl.where(said, penalized, x)
    x -= frequency * count.to(tl.float32)
    x -= tl.where(count > 0, presence, 0.0)
    for n in range(0, tl.load(num_biased + slot)):
        token = tl.load(bias_ids + slot * most_biased + n)
        if (token >= first) & (token < first + BLOCK):
            x = tl.where(ids == token, x + tl.load(bias + slot * most_biased + n), x)
    if HAS_MASK:
        x = tl.where(_bits(allowed + slot * num_words, ids, inside), x, -float("inf"))
    tl.store(logits + row * stride + ids, x, mask=inside)


def adjust_logits(
    logits: torch.Tensor, batch_index: torch.Tensor, slots: torch.Tensor, state: Adjustments
) -> None:
    """Adjusts rows of logits in place. batch_index: [U] distinct rows; slots: [U] the state of each, or
    -1."""
    vocab_size, users = logits.shape[1], batch_index.shape[0]
    words = triton.cdiv(vocab_size, 32)
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    assert state.counts.shape[1] == vocab_size and state.prompt.shape[1] == words
    assert state.allowed is None or state.allowed.shape[1] == words
    if users:
        _adjust_kernel[(users, triton.cdiv(vocab_size, BLOCK))](
            logits,
            batch_index,
            slots,
            state.strengths,
            state.counts,
            state.prompt,
            state.bias_ids,
            state.bias,
            state.num_biased,
            state.allowed,
            logits.stride(0),
            vocab_size,
            words,
            state.bias.shape[1],
            HAS_MASK=state.allowed is not None,
            BLOCK=BLOCK,
            num_warps=8,
            enable_fp_fusion=False,  # x - f * count is rounded twice, as in kernels.ops
        )
