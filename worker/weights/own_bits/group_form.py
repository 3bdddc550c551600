"""From a checkpoint's groups of inputs to those of kernels.cpu.matmul.groups.

Groups there have one size, a multiple of 16 up to 128, and inputs that are neighbours. Larger groups are
divided, each part with the scale and the zero point of the whole; inputs of a group that are no neighbours
(act-order) become such by an order of the inputs.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.cpu.matmul.groups.weight import SIZES, SMALLEST
from kernels.cpu.matmul.groups.words import GroupedWords
from worker.weights.source import GroupedIntegers, GroupedRows

BITS = 4
_LARGEST = max(SIZES)
_EXACT_SCALES = ("F16", "BF16", "F8_E8M0")
"""Kinds of scales whose bits the form keeps."""


@dataclass(frozen=True)
class GroupForm:
    """How the inputs of a weight lie in groups of one size."""

    stored: GroupedIntegers
    size: int
    order: torch.Tensor | None  # [K] int64: which input comes where; None: as they stand
    sources: torch.Tensor  # [groups] int64: of which stored group each is a part

    @property
    def groups(self) -> int:
        """Of the inputs."""
        return len(self.sources)

    def has_inputs_of(self, other: "GroupForm") -> bool:
        """True if groups have the same inputs in the same order."""
        orders = self.order, other.order
        if (self.size, self.groups) != (other.size, other.groups) or (orders[0] is None) != (
            orders[1] is None
        ):
            return False
        return orders[0] is None or orders[1] is None or torch.equal(orders[0], orders[1])

    def put(self, words: GroupedWords, rows: torch.Tensor, read: GroupedRows) -> None:
        """Writes some rows. rows: [R] int64, which ones of the words; read: what is stored of them."""
        found = self.arranged(read)
        integers = found.integers.reshape(len(rows), self.groups, self.size)
        words.put(rows, integers, found.scales, found.zeros)

    def arranged(self, read: GroupedRows) -> GroupedRows:
        """Returns what is stored of some rows by the groups of the form: integers [R, groups * size], padded
        with zeros, and scales, float32, and zero points [R, groups]."""
        integers = read.integers if self.order is None else read.integers[:, self.order]
        lacking = self.groups * self.size - integers.shape[1]
        padded = F.pad(integers, (0, lacking)) if lacking else integers
        scales, zeros = read.scales.float()[:, self.sources], read.zeros[:, self.sources]
        return GroupedRows(padded, zeros, scales)


def group_form(stored: GroupedIntegers) -> GroupForm | str:
    """Returns the form that holds these integers exactly, or why there is none."""
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
    parts = torch.tensor([-(-each // size) for each in sizes])
    in_order = bool((stored.group.diff() >= 0).all())
    order = None if in_order else stored.group.argsort(stable=True)
    return GroupForm(stored, size, order, used.repeat_interleave(parts))


def _common_size(sizes: list[int]) -> int | None:
    """Returns the largest size of groups that divides all of these but the last, which zeros may fill up."""
    divided = sizes[:-1] or [each for each in sizes if each % SMALLEST == 0]
    candidates = range(_LARGEST, 0, -SMALLEST)
    return next((size for size in candidates if not any(each % size for each in divided)), None)
