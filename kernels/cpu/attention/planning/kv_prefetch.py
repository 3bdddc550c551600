"""Prefetches keys and values of the next attention while the products before it compute.

What is asked for, how and why: kernels.cpu.attention.planning.kv_prefetch_kernel. This is the memory that it
needs, of one window of one program. Nothing depends on it but speed, so it has no twin.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernels.cpu.attention.records import PrefetchRecord, PrefetchStep, PrefetchStream

if TYPE_CHECKING:
    from kernels.cpu.attention.block_attention import BlockPlan

LEAST_ROWS = 24
"""Of products that ask for anything."""
_SLACK = 8
"""Numbers behind the list: a tile's last words may look there."""


class KVPrefetch:
    """For attention layers with the same window."""

    def __init__(self) -> None:
        from kernels.cpu.attention.planning.kv_prefetch_kernel import MOST_PIECES
        from kernels.cpu.attention.planning.kv_prefetch_list import list_pieces

        self.operation = list_pieces
        self._list = np.zeros(MOST_PIECES + _SLACK, np.int64)
        self._step = PrefetchStep(pieces=self._list.ctypes.data)
        self._streams: list[PrefetchStream] = []

    def record(self, plan: "BlockPlan", cache: tuple[torch.Tensor, torch.Tensor]) -> PrefetchRecord:
        """The record that makes the list, for each step anew. plan: of any step; its address and how many
        items it has change. cache: keys and values of a layer, [B, K, S, D] each."""
        key, value = cache
        return PrefetchRecord(
            plan=plan.address,
            step=self._step.address,
            items=int(plan.made[0]),
            group=plan.kernels.group,
            block_size=key.shape[2],
            block_bytes=key[0].nbytes,
            to_values=value.data_ptr() - key.data_ptr(),
        )

    def streams(self, key: torch.Tensor, products: Sequence[tuple[int, int]]) -> list[int]:
        """Addresses of the streams of the products that come before an attention. key: what it reads,
        [B, K, S, D]. products: their columns and words."""
        from kernels.cpu.attention.planning.kv_prefetch_kernel import LINES
        from kernels.cpu.runtime.work_split import COLUMNS

        sizes = [-(-columns // COLUMNS) * (words // LINES) for columns, words in products]
        step, keys, total = self._step.address, key.data_ptr(), sum(sizes)
        streams = [
            PrefetchStream(step=step, keys=keys, before=before, total=total)
            for before in accumulate(sizes[:-1], initial=0)
        ]
        self._streams += streams
        return [stream.address for stream in streams]
