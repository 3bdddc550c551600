"""Formulas of attention and of the paged cache, token by token, for tests of kernels.ops.attention."""

from collections.abc import Sequence

import numpy as np
import torch

from kernels.ops.attention.e4m3 import narrowed
from kernels.ops.attention.gather_plan import first_seen


def copy_blocks_reference(cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """The formula, block by block, reading from a copy of the cache."""
    before = cache.clone()
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        cache[:, target] = before[:, source]


def swap_out_reference(
    cache: torch.Tensor, host: torch.Tensor, sources: Sequence[int], targets: Sequence[int]
) -> None:
    """The formula, at once."""
    host[torch.tensor(targets)] = cache[:, torch.tensor(sources)].movedim(1, 0).to(host.device)


def swap_in_reference(
    cache: torch.Tensor, host: torch.Tensor, sources: Sequence[int], targets: Sequence[int]
) -> None:
    """The formula, at once."""
    cache[:, torch.tensor(targets)] = host[torch.tensor(sources)].movedim(0, 1).to(cache.device)


def store_kv_reference(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """The formula, token by token."""
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, block_size)
        key_cache[block, :, offset] = narrowed(key[token], key_cache.dtype)
        value_cache[block, :, offset] = narrowed(value[token], value_cache.dtype)


def paged_attention_reference(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    starts: Sequence[int],
    counts: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    window: int | None,
    scale: float,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    chunked: bool = False,
) -> torch.Tensor:
    """The formula, query by query, in float32 or wider. [T, H, D] -> [T, H, D].

    soft_cap: scores become soft_cap * tanh(score / soft_cap). slopes: [H], ALiBi: slopes * (j - p) is added
    to them, on a GPU alone. sinks: [H], the score of one more key of each head, whose value is zero. window,
    chunked: see kernels.ops.attention.gather_plan.first_seen.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    groups = query.shape[1] // key_cache.shape[1]
    rows: list[torch.Tensor] = []
    for start, count, table in zip(starts, counts, block_tables, strict=True):
        blocks = torch.as_tensor(table, dtype=torch.int64, device=query.device)
        # [N, K, S, D] -> [K, N * S, D] -> [H, N * S, D]
        keys = key_cache[blocks].transpose(0, 1).flatten(1, 2).repeat_interleave(groups, 0).to(wide)
        values = value_cache[blocks].transpose(0, 1).flatten(1, 2).repeat_interleave(groups, 0).to(wide)
        for position in range(start, start + count):
            seen = slice(int(first_seen(np.array(position), window, chunked)), position + 1)
            one = query[len(rows)].to(wide)
            scores = torch.einsum("hd,hjd->hj", one, keys[:, seen]) * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            if slopes is not None:
                distances = torch.arange(seen.start, seen.stop, device=query.device) - position
                scores = scores + slopes.to(wide)[:, None] * distances
            if sinks is not None:
                scores = torch.cat((scores, sinks.to(wide)[:, None]), -1)
            weights = scores.softmax(-1)[:, : seen.stop - seen.start]
            rows.append(torch.einsum("hj,hjd->hd", weights, values[:, seen]))
    return torch.stack(rows).to(query.dtype)
