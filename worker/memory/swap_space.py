"""The swap space: host memory for the blocks of preempted sequences.

One tensor [H, P, ...] per pool of the cache [P, B, ...], so that a host block is one piece of memory. With a
CUDA device it is pinned (pinned_zeros()), so that copies are asynchronous and need no staging
buffer. Only the engine core knows which sequence a host block belongs to.
"""

import math
import mmap
import time
from collections.abc import Sequence

import torch

from kernels.api import block_copies, zeros
from pagewire.host.resources import available_memory
from worker.memory.host_blocks import NO_SWAP_SPACE, choose_num_host_blocks
from worker.memory.kv_cache import KVCache, fitting
from worker.step.plan_reader import Swaps

NOT_PINNED = (OSError, ValueError, MemoryError, OverflowError, RuntimeError)
"""What mmap and the driver raise."""


def pinned_zeros(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns zeros in pinned host memory of exactly this size, which lives as long as the tensor. Raises
    MemoryError.

    torch rounds pinned memory up to a power of two: 40 GiB become 64. So large pieces are anonymous pages
    that the CUDA driver is told to pin.
    """
    num_bytes = math.prod(size) * dtype.itemsize
    if not num_bytes:
        return torch.zeros(tuple(size), dtype=dtype)
    try:
        pages = torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8)
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(runtime.cudaHostRegister(pages.data_ptr(), num_bytes, 0)))
    except NOT_PINNED as error:
        raise MemoryError(f"{num_bytes} bytes cannot be pinned: {error}") from error
    return pages.view(dtype).view(tuple(size))


_MEASURED_BYTES = 16 << 20
"""Size limit of a measuring copy, which takes a few milliseconds over any host link."""


class SwapSpace:
    """The host blocks of one worker, beside its cache."""

    def __init__(self, num_blocks: int, cache: KVCache) -> None:
        """num_blocks: may be 0. Raises StartupError when the memory is not there."""
        self.num_blocks, self._cache = num_blocks, cache
        self._bytes_per_block = cache.num_bytes // (cache.num_blocks + 1)
        self._pools = [(pool, _host_pool(pool, num_blocks)) for pool in cache.pools]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The blocks in host memory."""
        return [host for _, host in self._pools]

    def execute(self, swaps: Swaps) -> None:
        """Copies out, then in."""
        self._swap_out(swaps.out_blocks.tolist(), swaps.out_host_blocks.tolist())
        self._swap_in(swaps.in_host_blocks.tolist(), swaps.in_blocks.tolist())

    def measure_us_per_block(self) -> float:
        """Returns the microseconds that one block takes to be copied out or back; 0 without a swap space.
        Contents of the cache do not change."""
        if not self.num_blocks:
            return 0.0
        most = max(1, _MEASURED_BYTES // self._bytes_per_block)
        blocks = list(range(min(self.num_blocks, self._cache.num_blocks, most)))
        return min(self._time_round_trip(blocks) for _ in range(3)) / (2 * len(blocks))

    def _time_round_trip(self, blocks: list[int]) -> float:
        began = time.perf_counter_ns()
        self._swap_out(blocks, blocks)
        self._swap_in(blocks, blocks)
        device = self._cache.layout.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter_ns() - began) / 1000

    def _swap_out(self, blocks: list[int], host_blocks: list[int]) -> None:
        for pool, host in self._pools:
            block_copies.swap_out(pool, host, blocks, host_blocks)

    def _swap_in(self, host_blocks: list[int], blocks: list[int]) -> None:
        for pool, host in self._pools:
            block_copies.swap_in(pool, host, host_blocks, blocks)


def _host_pool(pool: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """pool: [P, B, ...] -> [H, P, ...] in host memory, pinned for a CUDA device. Raises StartupError."""
    planes, _, *block_shape = pool.shape
    size = num_blocks, planes, *block_shape
    with fitting(NO_SWAP_SPACE, f"{num_blocks} host blocks do not fit", "choose a smaller --swap-space"):
        if pool.device.type == "cuda":
            return pinned_zeros(size, pool.dtype)
        return zeros(size, pool.dtype, torch.device("cpu"))


def make_swap_space(num_bytes: int, cache: KVCache, beside: int = 0) -> SwapSpace:
    """Returns a swap space of so many bytes of host memory, which on a CPU is the memory of the cache too.
    beside: bytes that a drafter keeps of each block there."""
    in_use = cache.num_bytes if cache.layout.device.type == "cpu" else 0  # claimed, but not yet written
    per_block = cache.num_bytes // (cache.num_blocks + 1) + beside
    num_blocks = choose_num_host_blocks(num_bytes, per_block, available_memory() - in_use)
    return SwapSpace(num_blocks, cache)
