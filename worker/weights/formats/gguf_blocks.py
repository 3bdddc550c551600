"""Blocks of GGUF tensors to float32, with the operations and roundings of ggml's reference.

A function takes [blocks, bytes of a block] uint8 and returns [blocks, values of a block] float32. Each value
is scale * integer, or scale * integer + minimum; the products are rounded before the sums. K-quants have
blocks of 256 values with scales of their own for every 16 or 32 of them, integers of 6 or 8 bits themselves.
"""

from collections.abc import Callable

import torch

from pagewire.gguf.tensor_types import Q4_0, TensorType
from worker.weights.source import GroupedRows

Blocks = torch.Tensor


def dequantize(rows: torch.Tensor, tensor_type: TensorType) -> torch.Tensor:
    """[R, bytes of a row] uint8 -> [R, values of a row] float32."""
    blocks = rows.reshape(-1, tensor_type.block_bytes)
    return _FUNCTIONS[tensor_type.name](blocks).reshape(rows.shape[0], -1)


def q4_0_groups(rows: torch.Tensor) -> GroupedRows:
    """[R, bytes of a row] uint8, of type Q4_0: integers, scales and zero points of groups of 32."""
    blocks = rows.reshape(len(rows), -1, Q4_0.block_bytes)
    integers = _nibbles(blocks[..., 2:]).flatten(1)
    scales = blocks[..., :2].contiguous().view(torch.float16)[..., 0]
    return GroupedRows(integers, torch.full(scales.shape, 8, dtype=torch.uint8), scales)


def _half(blocks: Blocks, first: int) -> torch.Tensor:
    """Returns the float16 number at a byte of each block, [blocks, 1] float32."""
    return blocks[:, first : first + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes -> [..., 2, n]: the low halves, then the high ones."""
    return torch.stack((packed & 15, packed >> 4), dim=-2)


def _bits(packed: torch.Tensor, width: int) -> torch.Tensor:
    """[..., n] bytes -> [..., 8 / width, n]: the numbers of `width` bits in each byte, low ones first."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & ((1 << width) - 1)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """[blocks, 4] bytes -> [blocks, 32]: bit i belongs to value i, worth 16."""
    return _bits(packed, 1).transpose(1, 2).flatten(1) << 4


def _q4_0(blocks: Blocks) -> torch.Tensor:
    integers = _nibbles(blocks[:, 2:]).flatten(1).float() - 8
    return _half(blocks, 0) * integers


def _q4_1(blocks: Blocks) -> torch.Tensor:
    integers = _nibbles(blocks[:, 4:]).flatten(1).float()
    return _half(blocks, 0) * integers + _half(blocks, 2)


def _q5_0(blocks: Blocks) -> torch.Tensor:
    integers = _nibbles(blocks[:, 6:]).flatten(1) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (integers.float() - 16)


def _q5_1(blocks: Blocks) -> torch.Tensor:
    integers = _nibbles(blocks[:, 8:]).flatten(1) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * integers.float() + _half(blocks, 2)


def _q8_0(blocks: Blocks) -> torch.Tensor:
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _k_scales(blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the scales and minimums of the eight groups of a block, [blocks, 8, 1] float32 each.

    Twelve bytes hold sixteen integers of 6 bits: those of the first four groups in bytes 0 to 7, with the
    upper two bits of the other groups on top; bytes 8 to 11 have the lower four bits of those.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), dim=1)
    minimums = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), dim=1)
    return (
        (_half(blocks, 0) * scales.float())[..., None],
        (_half(blocks, 2) * minimums.float())[..., None],
    )


def _q4_k(blocks: Blocks) -> torch.Tensor:
    scales, minimums = _k_scales(blocks)
    integers = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return (scales * integers.float() - minimums).flatten(1)


def _q5_k(blocks: Blocks) -> torch.Tensor:
    scales, minimums = _k_scales(blocks)
    fifth = _bits(blocks[:, 16:48], 1)  # one bit per group
    integers = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | (fifth << 4)
    return (scales * integers.float() - minimums).flatten(1)


def _q6_k(blocks: Blocks) -> torch.Tensor:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = _bits(blocks[:, 128:192].reshape(-1, 2, 32), 2)
    integers = (low | (high << 4)).reshape(-1, 16, 16).float() - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return (scales[..., None] * integers).flatten(1)


_FUNCTIONS: dict[str, Callable[[Blocks], torch.Tensor]] = {
    "F32": lambda blocks: blocks.contiguous().view(torch.float32),
    "F16": lambda blocks: blocks.contiguous().view(torch.float16).float(),
    "BF16": lambda blocks: blocks.contiguous().view(torch.bfloat16).float(),
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
