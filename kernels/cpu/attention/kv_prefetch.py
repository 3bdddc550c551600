"""Keys and values of the next attention, asked for from memory by the products before it.

What is asked for, how and why: kernels.cpu.attention.kv_prefetch_kernel. This is the memory that it needs,
of one window of one program. Nothing depends on it but speed, so it has no twin.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from kernels.cpu.attention.block_attention import BlockPlan

LEAST_ROWS = 24
"""Of products that ask for anything."""
_SLACK = 8
"""Numbers behind the list: a tile's last words may look there."""


class KVPrefetch:
    """For attention layers with the same window."""

    def __init__(self) -> None:
        from kernels.cpu.attention.kv_prefetch_kernel import MOST_PIECES
        from kernels.cpu.attention.kv_prefetch_list import list_pieces

        self.operation: int = list_pieces
        self._list = np.zeros(MOST_PIECES + _SLACK, np.int64)
        self._step = np.array((self._list.ctypes.data, 0), np.int64)
        self._streams: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = []

    def fields(self, plan: "BlockPlan", cache: tuple[torch.Tensor, torch.Tensor]) -> tuple[int, ...]:
        """Of the record that makes the list, for each step anew. plan: of any step; its address and how many
        items it has change. cache: keys and values of a layer, [B, K, S, D] each."""
        key, value = cache
        sizes = key.shape[2], key[0].nbytes, value.data_ptr() - key.data_ptr()
        items, group = int(plan.made[0]), plan.kernels.group
        return plan.addresses.ctypes.data, self._step.ctypes.data, items, group, *sizes

    def streams(self, key: torch.Tensor, products: Sequence[tuple[int, int]]) -> list[int]:
        """Addresses of the streams of the products that come before an attention. key: what it reads,
        [B, K, S, D]. products: their columns and words."""
        from kernels.cpu.attention.kv_prefetch_kernel import LINES
        from kernels.cpu.runtime.work_split import COLUMNS

        sizes = [-(-columns // COLUMNS) * (words // LINES) for columns, words in products]
        total = sum(sizes)
        before = accumulate(sizes[:-1], initial=0)
        streams = np.array(
            [(self._step.ctypes.data, key.data_ptr(), each, total) for each in before], np.int64
        )
        self._streams.append(streams)
        return [stream.ctypes.data for stream in streams]
