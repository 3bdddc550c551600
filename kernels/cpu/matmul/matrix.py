"""Weights of a CPU: what all of their forms have in common.

A weight [N, K] is packed once, at load, for the compiled product that reads it: in blocks of 48 outputs, with
its bias. Forms differ in what a block holds, and in what the product multiplies with: x itself, or integers
that an operation before makes of it.

    kernels.cpu.matmul.packed           bfloat16 or float32; float16, of a weight in float32
    kernels.cpu.matmul.compact.weight   12 bits, of a weight in bfloat16
    kernels.cpu.matmul.int8             8 bits
    kernels.cpu.matmul.groups.weight    4 bits in groups of inputs
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F

from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.matmul.records import LinearRecord, PackedRowsRecord
from kernels.cpu.runtime.arena import MATRIX_ROWS, Arena
from kernels.cpu.runtime.grain import row_grain
from kernels.cpu.runtime.records import ProductRecord

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Team

Allocate = Callable[[int, torch.dtype], torch.Tensor]
"""(width, dtype): returns a buffer [M, width] for the rows of a product."""
Put = Callable[[Operation[Any], OperationRecord, int], object]
"""(operation, record, grain): runs an operation on the rows of a product, or puts it into a program."""


def _team() -> "Team":
    from kernels.cpu.runtime.thread_pool import TEAM  # compiles, the first time

    return TEAM


@dataclass(frozen=True, kw_only=True)
class PackedMatrix:
    """A weight and its bias."""

    words: torch.Tensor  # [ceil(N / 48), ...]: the blocks
    params: torch.Tensor  # of every 16 outputs their biases, and more in some forms
    out_features: int  # N
    in_features: int  # K
    product: Operation[Any]
    scratch_bytes: int  # that a thread of the product needs
    dtype: torch.dtype = torch.bfloat16  # of x, and of results
    depth: int = 0  # of the tree that adds 2 ** depth leaves (kernels.cpu.matmul.leaves)
    team: "Team" = field(default_factory=_team)
    terms_field: ClassVar[int] = 0
    """Where the product's record has the address of terms, in bytes (kernels.cpu.experts.records.Group)."""

    @property
    def halves(self) -> tuple[int, int]:
        """Addresses of the first block and of that where threads with odd numbers begin
        (kernels.cpu.runtime.work_split.linear_middle)."""
        middle = -(-self.out_features // 16) // 2 // 3
        return self.words.data_ptr(), self.words[middle].data_ptr()

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return self.words.nbytes + self.params.nbytes

    @property
    def row_words(self) -> int:
        """Words of a row of inputs, as the product counts them."""
        return self.words.shape[1]

    @property
    def input_width(self) -> int:
        """Values of a row of x that kernels read: K, or more, which are zeros."""
        return self.in_features

    @property
    def is_unpadded(self) -> bool:
        """Whether kernels read rows of x as they are, without zeros behind them."""
        return self.input_width == self.in_features

    def has_inputs_of(self, other: "PackedMatrix") -> bool:
        """True if what prepare() returns for the other matrix, of as many inputs, serves this one too."""
        return type(self).prepare is type(other).prepare

    def prepare(
        self, x: torch.Tensor, allocate: Allocate, put: Put
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Puts the operation that makes integers of x [M, input_width], in forms whose product multiplies
        integers. Returns what the product reads: x or the integers, and the terms that belong to these."""
        return x, None

    def record(self, x: torch.Tensor, out: torch.Tensor, terms: torch.Tensor | None = None) -> ProductRecord:
        """Returns the product's record. x, terms: of prepare(); out: [M, N] of the dtype or float32,
        contiguous."""
        return LinearRecord(**self._fields(x, out), scales=0 if terms is None else terms.data_ptr())

    def _fields(self, x: torch.Tensor, out: torch.Tensor) -> dict[str, int]:
        """Returns the fields that the records of all products have."""
        return {
            "x": x.data_ptr(),
            "weight": self.words.data_ptr(),
            "params": self.params.data_ptr(),
            "out": out.data_ptr(),
            "columns": self.out_features,
            "words": self.row_words,
            "out_bytes": out.dtype.itemsize,
            "depth": self.depth,
            "scratch": self.team.scratch(self.scratch_bytes),
        }

    def multiply(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[T, K] -> [T, N], both of the dtype; wide: float32 that was never rounded."""
        tokens, padding = len(x), self.input_width - self.in_features
        assert x.dtype == self.dtype and x.shape[1] == self.in_features

        def allocate(width: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty((tokens, width), dtype=dtype)

        def run(operation: Operation[Any], record: OperationRecord, grain: int) -> None:
            self.team.run_one(operation, tokens, record, grain)

        padded = (F.pad(x, (0, padding)) if padding else x).contiguous()
        inputs, terms = self.prepare(padded, allocate, run)
        out = allocate(self.out_features, torch.float32 if wide else self.dtype)
        run(self.product, self.record(inputs, out, terms), 0)
        return out


@dataclass(frozen=True, kw_only=True)
class PackedTable(PackedMatrix):
    """A weight whose rows can be looked up."""

    gather: Operation[Any]

    def rows(self, indexes: torch.Tensor) -> torch.Tensor:
        """Returns rows of the weight as it is computed with: [T] int64 -> [T, K] of the dtype."""
        out = torch.empty((len(indexes), self.input_width), dtype=self.dtype)
        record = self.rows_record(indexes.data_ptr(), out.data_ptr())
        self.team.run_one(self.gather, len(indexes), record, row_grain(self.input_width))
        return out[:, : self.in_features]

    def rows_record(self, indexes: int, out: int) -> PackedRowsRecord:
        """Returns the record of the operation that looks up rows. indexes, out: addresses of [T] int64 and of
        [T, input_width] of the dtype."""
        return PackedRowsRecord(indexes=indexes, weight=self.words.data_ptr(), out=out, words=self.row_words)


def padded_bias(out_features: int, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns a bias [N], or zeros, and zeros behind: [ceil(N / 48) * 48] float32."""
    added = torch.zeros(-(-out_features // MATRIX_ROWS) * MATRIX_ROWS)
    if bias is not None:
        added[:out_features] = bias
    return added


def tree_depth(in_features: int, leaves: int, multiple: int) -> int:
    """Returns the depth of the tree of so many leaves. Raises ValueError where there are several and have no
    multiple of so many inputs."""
    depth = leaves.bit_length() - 1
    if leaves != 1 << depth or depth and in_features % (leaves * multiple):
        raise ValueError(f"{in_features} inputs cannot be {leaves} leaves of multiples of {multiple}")
    return depth


def params_of(biases: torch.Tensor, depth: int) -> torch.Tensor:
    """Returns the params of a form that has biases alone. biases: of padded_bias()."""
    return biases if depth == 0 else torch.cat((torch.zeros(MATRIX_ROWS), biases))


def whole_blocks(weight: torch.Tensor, arena: Arena) -> torch.Tensor:
    """Returns the rows of a weight [N, K] and those behind them, [ceil(N / 48) * 48, K], in this arena. A
    matrix of the arena is given up; of any other a copy is made."""
    whole = arena.take_whole(weight)
    if whole is None:
        blocks = -(-len(weight) // MATRIX_ROWS)
        whole = arena.zeros((blocks * MATRIX_ROWS, weight.shape[1]), weight.dtype)
        whole[: len(weight)] = weight
    return whole
