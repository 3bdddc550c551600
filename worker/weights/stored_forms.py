"""Matrices in few bits as a checkpoint stores them: which form holds a tensor exactly, and its rows.

Groups of a checkpoint become groups of one size, a multiple of 16 up to 128, of inputs that are neighbours.
Larger groups are divided, each part with the scale and the zero point of the whole; inputs of a group that
are no neighbours (act-order) become such by an order of the inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from kernels.cpu.matmul.groups.e2m1 import MIDDLE
from kernels.cpu.matmul.groups.weight import SIZES, SMALLEST
from kernels.triton.matmul.low_bit_weight import Code
from worker.weights.source import GroupedIntegers, TensorSource

BITS = 4
_LARGEST = max(SIZES)
_EXACT_SCALES = ("F16", "BF16", "F8_E8M0")
"""Kinds of scales of which the form for 4 bits keeps every bit."""
_CODES = {torch.int8: Code.INT8, torch.float8_e4m3fn: Code.E4M3}


class CodedRows(NamedTuple):
    """Some rows of a matrix in few bits. R: their number."""

    codes: torch.Tensor  # [R, K or more]: integers or floats of up to 8 bits, in the order of the groups
    scales: torch.Tensor  # [R, groups] float32
    zeros: torch.Tensor | None  # [R, groups] integers; None: there are none


class HeldWeight(Protocol):
    """A matrix in few bits: GroupedWords of a CPU, LowBitWeight of a CUDA device."""

    @property
    def in_features(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def put(
        self, rows: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None
    ) -> None: ...


@dataclass(frozen=True)
class HeldForm:
    """What stands for the values of a matrix, in which groups, and where rows come from."""

    code: Code
    group_size: int
    order: torch.Tensor | None = None  # [K] int64: which input comes where; None: as they stand
    read: Callable[[int, int], CodedRows] | None = None  # from the first row and the one behind the last
    rounded: Callable[[torch.Tensor], CodedRows] | None = None  # from values [R, K], in place of `read`
    bits: int = BITS  # of a stored integer
    groups: int = 0  # of the inputs, in 4 bits

    def has_inputs_of(self, other: "HeldForm") -> bool:
        """True if parts of one matrix may have these forms: groups have the same inputs in the same order."""
        if (self.code, self.group_size, self.groups) != (other.code, other.group_size, other.groups):
            return False
        if self.order is None or other.order is None:
            return self.order is other.order
        return torch.equal(self.order, other.order)


def no_kernel(checkpoint: TensorSource, name: str) -> str:
    """Returns what is said of a tensor that no form holds."""
    return f"no kernel computes with {checkpoint.packing_of(name)} as it is"


def scaled_form(checkpoint: TensorSource, name: str) -> HeldForm | None:
    """Returns the form that holds values of 8 bits with scales; None where a tensor is stored otherwise."""
    stored = checkpoint.scaled(name)
    if stored is None:
        return None

    def read(first: int, end: int) -> CodedRows:
        return CodedRows(*stored.read(first, end), None)

    return HeldForm(_CODES[stored.dtype], stored.group_size, None, read)


def group_form(stored: GroupedIntegers) -> HeldForm | str:
    """Returns the form that holds integers or floats of 4 bits exactly, or why there is none."""
    if stored.bits > BITS:
        return f"integers of {stored.bits} bits"
    if stored.scale_kind not in _EXACT_SCALES:
        return f"scales in {stored.scale_kind}, of which the form for 4 bits keeps 16 bits"
    counts = torch.bincount(stored.group, minlength=stored.num_groups)
    used = counts.nonzero().flatten()
    sizes: list[int] = counts[used].tolist()
    size = _common_size(sizes)
    if size is None:
        odd = next(each for each in sizes if each % SMALLEST)
        return f"a group of {odd} inputs, no multiple of {SMALLEST}"
    sources = used.repeat_interleave(torch.tensor([-(-each // size) for each in sizes]))
    lacking = len(sources) * size - len(stored.group)
    in_order = bool((stored.group.diff() >= 0).all())
    order = None if in_order else stored.group.argsort(stable=True)

    def read(first: int, end: int) -> CodedRows:
        found = stored.read(first, end)
        integers = found.integers if order is None else found.integers[:, order]
        codes = F.pad(integers, (0, lacking)) if lacking else integers
        scales, zeros = found.scales.float()[:, sources], found.zeros[:, sources]
        assert not stored.e2m1 or bool((zeros == MIDDLE).all())
        return CodedRows(codes, scales, None if stored.e2m1 else zeros)

    code = Code.E2M1 if stored.e2m1 else Code.INT4
    return HeldForm(code, size, order, read, bits=stored.bits, groups=len(sources))


def _common_size(sizes: list[int]) -> int | None:
    """Returns the largest size of groups that divides all of these but the last, which zeros may fill up."""
    divided = sizes[:-1] or [each for each in sizes if each % SMALLEST == 0]
    candidates = range(_LARGEST, 0, -SMALLEST)
    return next((size for size in candidates if not any(each % size for each in divided)), None)
