"""The compiled operations of attention over blocks, for modules that do not compile them themselves."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from kernels.cpu.attention.records import AttentionRecord, StoreKVRecord
from kernels.cpu.attention.sizes import QUERY
from kernels.cpu.compiler.records import Operation
from kernels.cpu.runtime.arena import zeros
from kernels.cpu.runtime.grain import row_grain

if TYPE_CHECKING:  # it compiles when it is imported
    from kernels.cpu.runtime.thread_pool import Team


class Scratch:
    """Scratch memory of a team's threads. It grows to the largest size that a step has needed; what was
    smaller stays, since plans of other steps may be used again."""

    def __init__(self) -> None:
        self._memories = [torch.empty(0, dtype=torch.uint8)]

    def address(self, nbytes: int) -> int:
        """Returns the address of at least `nbytes` bytes."""
        if len(self._memories[-1]) < nbytes:
            self._memories.append(zeros((1 << (nbytes - 1).bit_length(),), torch.uint8))
        return self._memories[-1].data_ptr()


def _team() -> "Team":
    from kernels.cpu.runtime.thread_pool import TEAM  # compiles, the first time

    return TEAM


@dataclass(frozen=True)
class BlockKernels:
    """The compiled operations on a cache in this layout."""

    dtype: torch.dtype  # of queries and results: bfloat16 or float32
    store: Operation[StoreKVRecord]  # kernels.cpu.attention.bfloat16_kv.store_kv
    attend: Operation[AttentionRecord]  # kernels.cpu.attention.bfloat16_kv.attention_bfloat16
    combine: Operation[AttentionRecord]  # kernels.cpu.attention.combine_parts
    group: int  # query heads per KV head
    block_size: int
    joins: bool = False  # whether two rows may be one item
    query_bytes: int = QUERY  # from one query of an item to the next
    team: "Team" = field(default_factory=_team)
    scratch: Scratch = field(default_factory=Scratch)

    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        rows: torch.Tensor,
    ) -> None:
        """Writes keys and values into their slots; see kernels.ops.attention.store_kv.store_kv."""
        tokens, heads, head_dim = key.shape
        if key.stride() != value.stride() or key.stride()[1:] != (head_dim, 1):
            key, value = key.contiguous(), value.contiguous()
        record = StoreKVRecord(
            key=key.data_ptr(),
            value=value.data_ptr(),
            key_cache=key_cache.data_ptr(),
            value_cache=value_cache.data_ptr(),
            slot_rows=rows.data_ptr(),
            stride=key.itemsize * key.stride(0),
            heads=heads,
            head_dim=head_dim,
        )
        self.team.run_one(self.store, tokens, record, row_grain(2 * heads * head_dim))
