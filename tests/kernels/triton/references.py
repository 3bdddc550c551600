"""Formulas of kernels.triton, row by row and in float64.

Apart from others: Triton's interpreter must be chosen before its modules are imported.
"""

import torch

from kernels.ops.attention.e4m3 import E4M3, LARGEST
from kernels.triton.attention.work_list import WorkShape, _chunks
from kernels.triton.matmul.low_bit_weight import LowBitWeight
from kernels.triton.step.token_history import History


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


def low_bit_linear_reference(
    x: torch.Tensor, weight: LowBitWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The formula in float64, with values of w in x's dtype. [T, K] -> [T, N]."""
    result = x.double() @ weight.values().to(x.dtype).double().T
    return result if bias is None else result + bias.double()


def add_as_tree(parts: torch.Tensor) -> torch.Tensor:
    """[R, T, N] -> [T, N], neighbours first: the plain reference."""
    while len(parts) > 1:
        parts = parts[::2] + parts[1::2]
    return parts[0]


def sum_ranges_reference(parts: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Computes the formula in float64: [R, T, N] -> [T, N]."""
    total = parts.double().sum(0)
    return total if bias is None else total + bias.double()


def grouped_low_bit_linear_reference(
    x: torch.Tensor,
    weight: LowBitWeight,
    bias: torch.Tensor | None,
    owners: torch.Tensor,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """The formula in float64, pair by pair, with values of w in x's dtype. Returns [P, F]."""
    return grouped_linear_reference(x, weight.values().to(x.dtype), bias, owners, rows)


def grouped_linear_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    owners: torch.Tensor,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """The formula in float64, pair by pair. Returns [P, F]."""
    read = range(len(owners)) if rows is None else rows.tolist()
    pairs = list(zip(read, owners.tolist(), strict=True))
    results = [weight[expert].double() @ x[row].double() for row, expert in pairs]
    if bias is not None:
        results = [y + bias[expert].double() for y, (_, expert) in zip(results, pairs, strict=True)]
    return torch.stack(results)


def prepare_inputs_reference(
    rows: list[int],
    starts: list[int],
    counts: list[int],
    tokens: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
) -> tuple[list[int], list[int], list[int]]:
    """Returns token ids, positions and slots of a step without padding, token by token."""
    ids, positions, slots = [], [], []
    for row, start, count in zip(rows, starts, counts, strict=True):
        for position in range(start, start + count):
            ids.append(int(tokens[row, position]))
            positions.append(position)
            slots.append(int(blocks[row, position // block_size]) * block_size + position % block_size)
    return ids, positions, slots


def copy_segments_reference(
    source: torch.Tensor,
    target: torch.Tensor,
    source_starts: torch.Tensor,
    target_starts: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Copies by the formula, number by number, reading from a copy of source."""
    before, written = source.flatten().clone(), target.view(-1)
    pieces = zip(source_starts.tolist(), target_starts.tolist(), counts.tolist(), strict=True)
    for source_start, target_start, count in pieces:
        for j in range(count):
            written[target_start + j] = before[source_start + j]


def count_tokens_reference(
    tokens: list[int], prompt_len: int, slot: int, counts: torch.Tensor, prompt: torch.Tensor
) -> None:
    """Counts in place, token by token."""
    for token in tokens[:prompt_len]:
        word = (int(prompt[slot, token // 32]) % (1 << 32)) | (1 << (token % 32))
        prompt[slot, token // 32] = word - (1 << 32) if word >= 1 << 31 else word
    for token in tokens[prompt_len:]:
        counts[slot, token] += 1


def record_tokens_reference(tokens: torch.Tensor, rows: torch.Tensor, history: History) -> None:
    """Records in place, row by row."""
    for token, row in zip(tokens.clamp(min=0).tolist(), rows.tolist(), strict=True):
        position, slot = int(history.positions[row]), int(history.count_slots[row])
        if slot >= 0:
            history.counts[slot, token] += 1
        slot = int(history.output_slots[row])
        if slot >= 0 and position < history.outputs.shape[1]:
            history.outputs[slot, position] = token
        history.positions[row] += 1


def quantize_reference(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Quantizes by the formula: x [T, K, D], scales [K] -> [T, K, D] e4m3."""
    return (x.float() / scales[:, None]).clamp(-LARGEST, LARGEST).to(E4M3)
