"""Formulas of a step's inputs, token by token, for tests of kernels.triton.step."""

import torch

from kernels.triton.step.token_history import History


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
