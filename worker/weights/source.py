"""Where weights come from: tensors by name, whatever files and formats hold them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.api import Code

WHAT = "cannot load the model's weights"


class GroupedRows(NamedTuple):
    """Some rows of GroupedIntegers. R: their number, K: inputs, G: groups."""

    integers: torch.Tensor  # [R, K] uint8
    zeros: torch.Tensor | None  # [R, G], integers; None: of floats
    scales: torch.Tensor  # [R, G], as they are stored


@dataclass(frozen=True)
class GroupedIntegers:
    """A weight that is stored as integers with a scale and a zero point per output and group of inputs.

    weight[n, k] = (integer[n, k] - zero[n, g]) * scale[n, g]       g: the group of k

    Of experts, whose weight is [E, K, N], the rows are those of all, one expert after the other. Integers may
    be codes of floats of 4 bits (kernels.triton.matmul.low_bit_weight), and then twice the float takes the
    place of integer - zero.
    """

    bits: int  # of an integer
    group: torch.Tensor  # [K] int64: of each input
    num_groups: int
    scale_kind: str  # as safetensors names it, such as "F16"
    read: Callable[[int, int], GroupedRows]
    """From the first row and the one behind the last to what is stored of them; of experts, rows of one."""
    e2m1: bool = False  # whether they are codes

    def unpack(self, first: int, end: int) -> torch.Tensor:
        """Returns the values of rows first .. end - 1, [R, K] float32."""
        rows = self.read(first, end)
        scales = rows.scales.float()[:, self.group]
        if rows.zeros is None:
            return Code.doubled(rows.integers).float() * scales
        return (rows.integers.float() - rows.zeros.float()[:, self.group]) * scales


class ScaledRows(NamedTuple):
    """Some rows of ScaledValues. R: their number, K: inputs, G: groups."""

    values: torch.Tensor  # [R, K] int8 or float8_e4m3fn
    scales: torch.Tensor  # [R, G] float32


@dataclass(frozen=True)
class ScaledValues:
    """A weight that is stored in 8 bits with a scale per output and group of inputs.

    weight[n, k] = value[n, k] * scale[n, k // group_size]
    """

    dtype: torch.dtype  # int8 or float8_e4m3fn
    group_size: int  # K: one group
    read: Callable[[int, int], ScaledRows]
    """From the first row and the one behind the last to what is stored of them."""


class TensorSource(ABC):
    """The tensors of a checkpoint under the names of the model's family. Use as a context manager.

    Opening reads headers only. A tensor that is stored packed is unpacked when it is read, and only the part
    that is read.
    """

    def __enter__(self) -> "TensorSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    @abstractmethod
    def close(self) -> None:
        """Closes the files."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of all tensors."""

    @abstractmethod
    def file_of(self, name: str) -> str:
        """Returns the name of the file that holds a tensor."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape, read from headers."""

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """Returns the dtype of what read() returns. Raises StartupError if these are no floats."""

    @abstractmethod
    def read(self, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        """Reads a part of a tensor: slices of its first dimensions, without steps. Raises StartupError."""

    def main_dtype(self) -> torch.dtype:
        """Returns the dtype in which these tensors are computed with, unless something else is said: that of
        the first tensor with more than one dimension, since norms may be stored wider."""
        matrices = [name for name in self.names() if len(self.shape(name)) > 1]
        return self.dtype(min(matrices)) if matrices else torch.float32

    def packing(self) -> str:
        """Returns the formats of packed weights, such as "Q4_K, Q6_K"; empty where all are plain floats."""
        return ""

    def packing_of(self, name: str) -> str:
        """Returns the format of one packed weight; empty where it is plain floats."""
        return ""

    def grouped(self, name: str) -> GroupedIntegers | None:
        """Returns the integers that a weight is stored as; None where it is not stored as integers in
        groups."""
        return None

    def scaled(self, name: str) -> ScaledValues | None:
        """Returns the values of 8 bits that a weight is stored as; None where it is stored otherwise."""
        return None

    def stored_bytes(self) -> int:
        """Returns the bytes of the files' tensors; 0 where nothing is packed."""
        return 0
