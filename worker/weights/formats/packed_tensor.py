"""What the formats have in common: weights that are made of several stored tensors, and packed integers."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch

from pagewire.errors import StartupError
from worker.config.hf_config import Fields
from worker.weights.checkpoint import Checkpoint
from worker.weights.source import WHAT, GroupedIntegers, ScaledValues, TensorSource


@dataclass(frozen=True)
class PackedTensor:
    """A weight [N, K], or one of several experts [N, ...], and the stored tensors that it is made of."""

    shape: tuple[int, ...]
    parts: tuple[str, ...]
    unpack: Callable[[int, int], torch.Tensor]
    """From the first row and the one behind the last to [rows, ...] float32."""
    grouped: GroupedIntegers | None = None
    """What it unpacks, if these are integers in groups."""
    scaled: ScaledValues | None = None
    """What it unpacks, if these are values of 8 bits with scales."""


def grouped_tensor(shape: tuple[int, int], parts: tuple[str, ...], grouped: GroupedIntegers) -> PackedTensor:
    """Returns a weight [N, K] of integers in groups."""
    return PackedTensor(shape, parts, grouped.unpack, grouped)


class QuantizedCheckpoint(TensorSource):
    """A checkpoint whose packed weights have the names that they would have without packing."""

    def __init__(self, stored: Checkpoint, packed: Mapping[str, PackedTensor], kind: str) -> None:
        """kind: the format, for messages."""
        self._stored, self._packed, self._kind = stored, packed, kind
        parts = {part for tensor in packed.values() for part in tensor.parts}
        self._plain = [name for name in stored.names() if name not in parts and name not in packed]

    def close(self) -> None:
        self._stored.close()

    def names(self) -> list[str]:
        return [*self._packed, *self._plain]

    def __contains__(self, name: object) -> bool:
        return name in self._packed or name in self._stored

    def file_of(self, name: str) -> str:
        return self._stored.file_of(self._packed[name].parts[0] if name in self._packed else name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._packed[name].shape if name in self._packed else self._stored.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        return torch.float32 if name in self._packed else self._stored.dtype(name)

    def main_dtype(self) -> torch.dtype:
        """bfloat16."""
        return torch.bfloat16

    def read(self, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        if name not in self._packed:
            return self._stored.read(name, part)
        tensor = self._packed[name]
        rows, *columns = part or (slice(None),)
        first, end, _ = rows.indices(tensor.shape[0])
        return tensor.unpack(first, end)[(slice(None), *columns)]

    def packing(self) -> str:
        return self._kind if self._packed else ""

    def packing_of(self, name: str) -> str:
        return self._kind if name in self._packed else ""

    def grouped(self, name: str) -> GroupedIntegers | None:
        return self._packed[name].grouped if name in self._packed else None

    def scaled(self, name: str) -> ScaledValues | None:
        return self._packed[name].scaled if name in self._packed else None

    def stored_bytes(self) -> int:
        return sum(map(self._stored.num_bytes, self._stored.names()))


def modules_with(stored: Checkpoint, ending: str) -> list[str]:
    """Names of the modules that have a tensor of this name."""
    return sorted(name.removesuffix(f".{ending}") for name in stored.names() if name.endswith(f".{ending}"))


def part_names(stored: Checkpoint, module: str, endings: Iterable[str]) -> tuple[str, ...]:
    """Names of the tensors of a module, of those that it has."""
    return tuple(name for ending in endings if (name := f"{module}.{ending}") in stored)


def expect_shape(stored: Checkpoint, name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a tensor's shape, which must be one of these. Raises StartupError."""
    if name not in stored:
        raise StartupError(WHAT, f"the checkpoint lacks tensor {name}")
    shape = stored.shape(name)
    if shape not in shapes:
        wanted = " or ".join(str(list(each)) for each in shapes)
        raise StartupError(
            WHAT, f"tensor {name} in {stored.file_of(name)} has shape {list(shape)}, not {wanted}"
        )
    return shape


def matrix_shape(stored: Checkpoint, name: str) -> tuple[int, int]:
    """Returns the shape of a tensor of two dimensions. Raises StartupError."""
    shape = stored.shape(name)
    if len(shape) != 2 or 0 in shape:
        raise StartupError(
            WHAT, f"tensor {name} in {stored.file_of(name)} has shape {list(shape)}, not two dimensions"
        )
    return shape[0], shape[1]


def unpack_integers(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """[..., n] int32 -> [..., n * 32 / bits] uint8: the integers of `bits` bits in each number, low ones
    first."""
    words = packed.contiguous().view(torch.uint8)  # little-endian: the lowest byte first
    if bits == 8:
        return words
    if bits == 4:
        return halves_of_bytes(words)
    return torch.stack([(words >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)], -1).flatten(-2)


def halves_of_bytes(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] uint8 -> [..., 2 n] uint8: the lower half of each byte, then the upper one."""
    pairs = packed.to(torch.int16)  # little-endian: the lower byte first
    return (pairs | pairs << 4).bitwise_and_(0x0F0F).view(torch.uint8)


def group_of_columns(
    stored: Checkpoint, module: str, index: str, num_columns: int, num_groups: int, sizes: Collection[int]
) -> torch.Tensor:
    """Returns the group of each column, [num_columns]. index: name of the module's tensor that says it, where
    there is one. sizes: of groups, as the configuration says; the last group of a matrix may have fewer
    columns. Without any, groups are equally large. Raises StartupError where there are not so many groups."""
    if index and f"{module}.{index}" in stored:
        expect_shape(stored, f"{module}.{index}", (num_columns,))
        group = stored.read(f"{module}.{index}", ()).long()
        if group.min() < 0 or group.max() >= num_groups:
            raise StartupError(WHAT, f"tensor {module}.{index} names a group that is not there")
        return group
    if num_groups == 1:
        return torch.zeros(num_columns, dtype=torch.long)
    fitting = {size for size in sizes if -(-num_columns // size) == num_groups}
    if not sizes and num_columns % num_groups == 0:
        fitting = {num_columns // num_groups}
    if len(fitting) != 1:
        said = f"groups of {', '.join(map(str, sorted(sizes)))}" if sizes else "no group_size"
        raise StartupError(
            WHAT,
            f"{module} has {num_groups} groups of inputs, of which there are {num_columns}, but "
            f"quantization_config says {said}",
        )
    return torch.arange(num_columns) // fitting.pop()


def read_group_sizes(settings: Fields, *names: str) -> set[int]:
    """Returns the group size of a configuration; none where it is absent, null or -1: one group. names: that
    it may have. Raises StartupError."""
    said = [name for name in names if settings.has(name) and settings.value(name) != -1]
    return {settings.integer(name) for name in said}
