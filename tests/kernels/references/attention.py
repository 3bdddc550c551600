"""Formulas of attention and of the paged cache, token by token, for tests of kernels.ops.attention."""

from collections.abc import Sequence

import numpy as np
import torch

from kernels.ops.attention.e4m3 import narrowed
from kernels.ops.attention.gather_plan import first_seen
from kernels.triton.attention.work_list import WorkShape, _chunks


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


def work_list_reference(
    counts: list[int], lengths: list[int], shape: WorkShape
) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, int]]]:
    """Returns the items, and (b, n) of each row, one after the other. counts: tokens of each row."""
    rows = list(zip(counts, lengths, strict=True))
    sees = [_chunks(length - count, length, shape) for count, length in rows]
    pieces = [-(-count // shape.queries) for count in counts]
    work = sum(number * len(seen) for number, seen in zip(pieces, sees, strict=True))
    most = shape.most or max(1, -(-work * shape.num_kv // shape.programs))
    while shape.capacity < sum(
        count * len(seen) for count, seen in zip(counts, sees, strict=True) if len(seen) > most
    ):
        most *= 2
    shared, whole, places, base = [], [], [], 0
    for row, (count, seen) in enumerate(zip(counts, sees, strict=True)):
        places.append((base - seen.start, len(seen)))
        splits = -(-len(seen) // -(-most // 2)) if len(seen) > most else 1
        items = [(row, piece, s, splits) for piece in reversed(range(pieces[row])) for s in range(splits)]
        if splits > 1:
            shared += items
            base += count * len(seen)
        else:
            whole.append(items)
    return shared + [item for items in reversed(whole) for item in items], places


def merge_chunks_reference(parts: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:
    """Computes the formula in float64, of all chunks: parts [T', H, C, D], stats [T', H, C, 2] ->
    [T', H, D]."""
    largest, total = stats.double().unbind(-1)
    weights = torch.where(total > 0, torch.exp2(largest - largest.amax(-1, keepdim=True)), 0.0)
    acc = torch.where(total[..., None] > 0, parts.double(), 0.0)
    summed, whole = (weights[..., None] * acc).sum(2), (weights * total).sum(2, keepdim=True)
    return torch.where(whole > 0, summed / whole, 0.0)


def dequantize_reference(stored: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Dequantizes exactly: stored [..., K, S, D] e4m3 as in the cache, scales [K] -> [..., K, S, D]
    float64."""
    return stored.double() * scales.double()[:, None, None]
