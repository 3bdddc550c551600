"""The swap space: host memory for the blocks of preempted sequences.

One tensor [H, layers, 2, K, S, D], a block after the other, in the cache's layout within a block. Beside a
CUDA device it is pinned, so that copies neither wait nor pass through other memory. What lies where is
known to the engine core alone.
"""

import time

import torch

from kernels.ops.attention.swap_blocks import swap_in, swap_out
from pagewire.errors import StartupError
from worker.memory.kv_cache import NO_MEMORY, KVCache, zeros
from worker.startup_checks import NO_SWAP_SPACE
from worker.step.plan_reader import Swaps

_MEASURED_BYTES = 16 << 20
"""Largest copy of a measurement: a few milliseconds at the speed of any host link."""


class SwapSpace:
    """The host blocks of one worker, beside its cache."""

    def __init__(self, num_blocks: int, cache: KVCache) -> None:
        """num_blocks: may be 0. Raises StartupError when the memory is not there."""
        self.num_blocks = num_blocks
        self._cache = cache.tensor
        layers, two, _, heads, block_size, head_dim = cache.tensor.shape
        size = (num_blocks, layers, two, heads, block_size, head_dim)
        self._host = _allocate(size, cache.shape.dtype, cache.shape.device)

    def execute(self, swaps: Swaps) -> None:
        """Copies out, then in."""
        swap_out(self._cache, self._host, swaps.out_blocks.tolist(), swaps.out_host_blocks.tolist())
        swap_in(self._cache, self._host, swaps.in_host_blocks.tolist(), swaps.in_blocks.tolist())

    def measure_us_per_block(self) -> float:
        """Microseconds to copy one block out or back; 0 without a swap space. Contents stay."""
        if not self.num_blocks:
            return 0.0
        most = max(1, _MEASURED_BYTES // self._host[0].nbytes)
        blocks = list(range(min(self.num_blocks, self._cache.shape[2] - 1, most)))
        return min(self._time_round_trip(blocks) for _ in range(3)) / (2 * len(blocks))

    def _time_round_trip(self, blocks: list[int]) -> float:
        began = time.perf_counter_ns()
        swap_out(self._cache, self._host, blocks, blocks)
        swap_in(self._cache, self._host, blocks, blocks)
        if self._cache.is_cuda:
            torch.cuda.synchronize(self._cache.device)
        return (time.perf_counter_ns() - began) / 1000


def _allocate(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Host memory, pinned where it serves a CUDA device. Raises StartupError."""
    try:
        if device.type == "cuda":
            return torch.zeros(size, dtype=dtype, pin_memory=True)
        return zeros(size, dtype, torch.device("cpu"))
    except NO_MEMORY as error:
        why = f"{size[0]} host blocks do not fit: {error}"
        raise StartupError(NO_SWAP_SPACE, why, "choose a smaller --swap-space") from error
