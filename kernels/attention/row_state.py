"""What layers of linear attention keep: one state per row, in place of keys and values of each token."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from kernels.attention.kv_cache_spec import Plane
from kernels.ops.states.delta_rule import DeltaShape
from kernels.ops.states.selective_scan import MambaShape
from kernels.ops.states.update_log import update_width


class RowStateSpec(ABC):
    """The state of a row in one layer, float32 in every dtype."""

    @abstractmethod
    def planes(self) -> tuple[Plane, ...]:
        """The tensors of one layer, [rows, ...] each."""

    @abstractmethod
    def draft_planes(self, drafts: int) -> tuple[Plane, ...]:
        """What a layer keeps of at most so many drafted tokens beside them, until it is known which of these
        are accepted."""

    @property
    def num_tensors(self) -> int:
        """Of one layer in a cache, those of drafts, which may be empty, among them."""
        return len(self.planes()) + len(self.draft_planes(0))

    def bytes_per_row(self, drafts: int = 0) -> int:
        """Of one layer."""
        return sum(plane.bytes_per_block for plane in (*self.planes(), *self.draft_planes(drafts)))


def _drafted(channels: int, heads: int, keys: int, values: int, drafts: int) -> tuple[Plane, ...]:
    """What drafted tokens had before the convolution, and what they do to the state of each head
    (kernels.ops.states.update_log)."""
    wide = torch.float32
    return Plane((drafts, channels), wide), Plane((heads, drafts, update_width(keys, values)), wide)


@dataclass(frozen=True)
class DeltaStateSpec(RowStateSpec):
    """The state of a row in a gated delta net (kernels.ops.states)."""

    shape: DeltaShape
    taps: int  # of the convolution

    def planes(self) -> tuple[Plane, ...]:
        """What is convolved of the last tokens, and the state of each head."""
        shape, wide = self.shape, torch.float32
        last = Plane((self.taps - 1, shape.channels), wide)
        return last, Plane((shape.value_heads, shape.key_dim, shape.value_dim), wide)

    def draft_planes(self, drafts: int) -> tuple[Plane, ...]:
        shape = self.shape
        return _drafted(shape.channels, shape.value_heads, shape.key_dim, shape.value_dim, drafts)


@dataclass(frozen=True)
class MambaStateSpec(RowStateSpec):
    """The state of a row in a Mamba-2 layer (kernels.ops.states)."""

    shape: MambaShape
    taps: int  # of the convolution

    def planes(self) -> tuple[Plane, ...]:
        """What is convolved of the last tokens, and the state of each head."""
        shape, wide = self.shape, torch.float32
        last = Plane((self.taps - 1, shape.channels), wide)
        return last, Plane((shape.heads, shape.state_size, shape.head_dim), wide)

    def draft_planes(self, drafts: int) -> tuple[Plane, ...]:
        shape = self.shape
        return _drafted(shape.channels, shape.heads, shape.state_size, shape.head_dim, drafts)
