"""Looks up tokens in this rank's share of a table that is split by vocabulary.

    out[t] = table[token_ids[t] - first]      where that is a row of the table, else 0

token_ids: [T] integers; table: [V', E] contiguous, rows first .. first + V' - 1 of the whole: the sum over
the ranks is the embedding. One rank alone has all rows, and a token id that the vocabulary does not have is
0 too, where torch's lookup reads what lies behind the table. Any dtype. out: [T, E]. Bytes moved: 2 * E
values per token. Torch does a rank's share in five launches (subtract, compare, select, look up, multiply).
Speed: not yet measured on a GPU.

Source: vocabulary-parallel embedding of Megatron-LM (Shoeybi et al., 2019).
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Values of a program: 8 per thread, a load of 16 bytes at two bytes a value."""


def embed_reference(token_ids: torch.Tensor, table: torch.Tensor, first: int = 0) -> torch.Tensor:
    """The formula, token by token."""
    out = torch.zeros((token_ids.shape[0], table.shape[1]), dtype=table.dtype)
    for t, token in enumerate(token_ids.tolist()):
        if first <= token < first + table.shape[0]:
            out[t] = table[token - first]
    return out


@triton.jit
def _embed_kernel(
    token_ids,  # [T]
    table,  # [V', E]
    out,  # [T, E]
    first,
    held,
    width,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(token_ids + token).to(tl.int64) - first
    inside = column < width
    ours = inside & (row >= 0) & (row < held)
    value = tl.load(table + row * width + column, mask=ours, other=0.0)
    tl.store(out + token * width + column, value, mask=inside)


def embed(token_ids: torch.Tensor, table: torch.Tensor, first: int = 0) -> torch.Tensor:
    """[T] -> [T, E]."""
    assert table.is_contiguous() and token_ids.is_contiguous()
    tokens, (held, width) = token_ids.shape[0], table.shape
    out = torch.empty((tokens, width), dtype=table.dtype, device=table.device)
    if tokens:
        grid = tokens, triton.cdiv(width, BLOCK)
        _embed_kernel[grid](token_ids, table, out, first, held, width, BLOCK, num_warps=4)
    return out
