"""The tensors of a GGUF file: unpacked when they are read, row by row, and renamed.

llama.cpp rotates neighbouring values of a head (2i and 2i + 1) where the checkpoints of Llama rotate values
of the two halves (i and i + D/2), and its files have the rows of queries and keys in that order. They are put
back.

Blocks become float32 with the operations and roundings of ggml's reference. A function takes [blocks, bytes
of a block] uint8 and returns [blocks, values of a block] float32. Each value is scale * integer, or scale *
integer + minimum; the products are rounded before the sums. K-quants have blocks of 256 values with scales
for every 16 or 32 of them, integers of 6 or 8 bits themselves. Types without a function here are unpacked by
the `gguf` package.
"""

import mmap
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from pagewire.errors import StartupError, install_hint
from pagewire.gguf.header import WHAT, Header, TensorInfo, read_header
from pagewire.gguf.tensor_types import F16, F32, FLOATS, Q4_0, TensorType
from worker.config.experts import MOST_EXPERTS
from worker.config.gguf import ROPE_FACTORS, find_family
from worker.weights.source import GroupedIntegers, GroupedRows, TensorSource

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
"""Modules of a GGUF file -> those of Hugging Face checkpoints, which have a tensor for each expert."""
_IN_LAYER = re.compile(r"blk\.(\d{1,4})\.([a-z_]+)\.(weight|bias)")
_OUTSIDE = re.compile(r"([a-z_]+)\.(weight|bias)")


def hub_name(name: str) -> str:
    """Returns the name of a tensor in Hugging Face checkpoints; the same name if it is not known."""
    if match := _IN_LAYER.fullmatch(name):
        module = _NAMES.get(match[2])
        return name if module is None else f"model.layers.{match[1]}.{module}.{match[3]}"
    match = _OUTSIDE.fullmatch(name)
    return name if match is None or match[1] not in _NAMES else f"{_NAMES[match[1]]}.{match[2]}"


class GGUFTensors(TensorSource):
    """A GGUF file that is mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Raises StartupError."""
        header = read_header(path)
        self._path = path
        self._infos = dict(_renamed(header))
        _check_types(header)
        self._head_counts = _paired_head_counts(header)
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(
                    file.fileno(), 0, access=mmap.ACCESS_COPY
                )  # torch knows no read-only memory
        except (OSError, ValueError) as error:
            raise StartupError(WHAT, f"{path}: {error}") from error

    def close(self) -> None:
        """Leaves the mapping to the last array that refers to it."""

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def names(self) -> list[str]:
        return list(self._infos)

    def file_of(self, name: str) -> str:
        return self._path.name

    def shape(self, name: str) -> tuple[int, ...]:
        return self._infos[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return torch.float32

    def main_dtype(self) -> torch.dtype:
        """bfloat16, unless most bytes are of another kind of float."""
        by_type: dict[str, int] = {}
        for info in self._infos.values():
            by_type[info.type.name] = by_type.get(info.type.name, 0) + info.num_bytes
        most = max(by_type, key=lambda kind: by_type[kind], default=F32.name)
        return {F32.name: torch.float32, F16.name: torch.float16}.get(most, torch.bfloat16)

    def packing(self) -> str:
        return ", ".join(sorted({each.type.name for each in self._infos.values()} - FLOATS))

    def packing_of(self, name: str) -> str:
        kind = self._infos[name].type.name
        return "" if kind in FLOATS else kind

    def grouped(self, name: str) -> GroupedIntegers | None:
        """Only tensors of Q4_0."""
        info = self._infos[name]
        if info.type != Q4_0 or len(info.shape) != 2:
            return None
        rows, order = self._rows(info), self._row_order(name, info.shape[0])

        def read(first: int, end: int) -> GroupedRows:
            return _q4_0_groups(rows[first:end] if order is None else rows[order[first:end]])

        group = torch.arange(info.shape[1]) // Q4_0.block_values
        return GroupedIntegers(4, group, info.shape[1] // Q4_0.block_values, "F16", read)

    def stored_bytes(self) -> int:
        return sum(info.num_bytes for info in self._infos.values())

    def read(self, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        """Returns float32."""
        info = self._infos[name]
        if len(info.shape) > 2:
            raise StartupError(WHAT, f"{self._path}: tensor {name} has shape {list(info.shape)}")
        rows = self._rows(info)
        first, *rest = part or (slice(None),)
        if len(info.shape) == 1:
            values = dequantize(rows, info.type)[0]
            values = values if (order := self._row_order(name, info.shape[0])) is None else values[order]
            return values[first]
        order = self._row_order(name, info.shape[0])
        taken = rows[first].clone() if order is None else rows[order[first]]
        return dequantize(taken, info.type)[:, rest[0] if rest else slice(None)]

    def _rows(self, info: TensorInfo) -> torch.Tensor:
        """[rows, bytes of a row] uint8, in the mapped file."""
        content = np.frombuffer(self._map, np.uint8, info.num_bytes, info.offset)
        return torch.from_numpy(content).view(-1, info.row_bytes)

    def _row_order(self, name: str, num_rows: int) -> torch.Tensor | None:
        """Returns for each row of queries or keys where the file has it; None where it has them in order."""
        num_heads = next((n for end, n in self._head_counts.items() if re.search(rf"{end}\.\w+$", name)), 0)
        if num_heads == 0:
            return None
        if num_rows % (2 * num_heads):
            raise StartupError(WHAT, f"{self._path}: {name} has {num_rows} rows for {num_heads} heads")
        return order_of_pairs(num_rows, num_heads)


def order_of_pairs(num_rows: int, num_heads: int) -> torch.Tensor:
    """Returns for each row of rotated heads, in the order of Hugging Face checkpoints, where a file of
    llama.cpp has it: [num_rows] int64."""
    return torch.arange(num_rows).view(num_heads, -1, 2).transpose(1, 2).flatten()


def _renamed(header: Header) -> Iterator[tuple[str, TensorInfo]]:
    """Yields names in Hugging Face checkpoints and their tensors; one that holds all experts of a layer is
    divided. Raises StartupError."""
    for name, info in header.tensors.items():
        found = hub_name(name)
        if found == name or "{expert}" not in found:
            yield from () if name == ROPE_FACTORS else ((found, info),)
            continue
        count, *shape = info.shape
        if len(shape) != 2 or count > MOST_EXPERTS:
            raise StartupError(WHAT, f"{header.path}: tensor {name} has shape {list(info.shape)}")
        size = info.num_bytes // count
        for expert in range(count):
            one = replace(info, shape=tuple(shape), offset=info.offset + expert * size, num_bytes=size)
            yield found.format(expert=expert), one


def _check_types(header: Header) -> None:
    """Raises StartupError where the package is missing that unpacks a type of the file."""
    others = (each for each in header.tensors.values() if each.type.name not in _FUNCTIONS)
    if (first := next(others, None)) is not None and find_spec("gguf") is None:
        why = f"tensor {first.name} is {first.type.name}, and gguf, which unpacks it, is not installed"
        raise StartupError(WHAT, f"{header.path}: {why}", install_hint("gguf"))


def _paired_head_counts(header: Header) -> dict[str, int]:
    """Returns the number of heads of the modules whose rows are ordered in pairs."""
    if not find_family(header).rotary_pairs:
        return {}
    prefix = f"{header.metadata['general.architecture']}.attention."
    heads = header.metadata.get(f"{prefix}head_count", 0)
    counts = {"q_proj": heads, "k_proj": header.metadata.get(f"{prefix}head_count_kv", heads)}
    for count in counts.values():
        if not isinstance(count, int) or count < 0:
            raise StartupError(WHAT, f"{header.path}: {prefix}head_count is {count!r}")
    return counts


Blocks = torch.Tensor


def dequantize(rows: torch.Tensor, tensor_type: TensorType) -> torch.Tensor:
    """[R, bytes of a row] uint8 -> [R, values of a row] float32."""
    function = _FUNCTIONS.get(tensor_type.name)
    if function is None:
        return _by_package(rows, tensor_type.name)
    return function(rows.reshape(-1, tensor_type.block_bytes)).reshape(rows.shape[0], -1)


def _by_package(rows: torch.Tensor, name: str) -> torch.Tensor:
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):  # the loader refuses NaN and infinity, naming the tensor
        return torch.from_numpy(quants.dequantize(rows.numpy(), GGMLQuantizationType[name]))


def _q4_0_groups(rows: torch.Tensor) -> GroupedRows:
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
