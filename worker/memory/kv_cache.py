"""The paged KV cache: how many blocks, and the memory that holds them.

Each layer's KVCacheSpec says which planes hold its blocks. Planes of one shape and dtype are one pool, a
tensor [P, B, ...], so that copying a block is one operation per pool: one for all layers of a model whose
layers are alike. Keys and values of e4m3 are bytes there, which all operations copy. The last block is for
padding, which is written to it and read from it: its values are finite and belong to no row.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from kernels.api import CacheLayout, KVCacheSpec, LayerCache, Plane, block_copies, e4m3, zeros
from pagewire.errors import StartupError
from pagewire.host.resources import available_memory
from worker.memory.host_blocks import requested_blocks

MEMORY_PART = 0.5
"""The share of the memory available after loading the weights that the cache may take on a CPU. The rest is
for activations and other processes."""
USUAL_LEN, ROWS_PER_THREAD = 512, 16
"""The sequences for which the cache is sized by default: their length, and how many each thread computes at a
time. More wait for blocks, or are preempted."""
SMALL_BYTES = 256 << 20
"""A cache of this size is never too large."""
_LOOK_S, _MOST_LOOKS, _STEADY_BYTES = 0.01, 500, 64 << 20
"""Of await_freed_memory(): what comes back within a look, at least, while a process is being taken apart."""
WHAT = "cannot allocate the KV cache"


@contextmanager
def fitting(what: str, why: str, todo: str = "") -> Iterator[None]:
    """Raises StartupError where numpy or torch report a failed allocation."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        said = str(error).splitlines()[0] if str(error) else "not enough memory"
        raise StartupError(what, f"{why}: {said}", todo) from error


class KVCache:
    """The cache of one worker. `layers[i]` holds the planes that layer i reads and writes."""

    def __init__(self, specs: Sequence[KVCacheSpec], layout: CacheLayout) -> None:
        """specs: one per layer. Raises StartupError when the memory is not there."""
        self.specs, self.layout, self.num_blocks = tuple(specs), layout, layout.num_blocks
        planes = [spec.planes(layout.block_size, layout.cache_dtype) for spec in specs]
        pools = {plane: self._allocate(plane, count) for plane, count in Counter(sum(planes, ())).items()}
        views = {plane: iter(pool) for plane, pool in pools.items()}
        self.pools = tuple(e4m3.index_bytes(pool) for pool in pools.values())  # [P, B, ...] each
        self.layers: list[LayerCache] = [
            tuple(next(views[plane]) for plane in of_layer) for of_layer in planes
        ]

    @property
    def num_bytes(self) -> int:
        """Size of the whole cache."""
        return sum(pool.nbytes for pool in self.pools)

    def copy_blocks(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copies blocks [C] to blocks [C] in all layers."""
        for pool in self.pools:
            block_copies.copy_blocks(pool, sources, targets)

    def _allocate(self, plane: Plane, count: int) -> torch.Tensor:
        """Returns the pool of so many planes of this kind."""
        blocks, layout = self.num_blocks, self.layout
        with fitting(WHAT, f"{blocks} blocks do not fit", "ask for fewer blocks"):
            return zeros((count, blocks + 1, *plane.block_shape), plane.dtype, layout.device)


def block_bytes(specs: Iterable[KVCacheSpec], block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block in all layers. specs: one per layer. dtype: of keys and values."""
    planes = (plane for spec in specs for plane in spec.planes(block_size, dtype))
    return sum(plane.bytes_per_block for plane in planes)


def choose_num_blocks(
    requested: int,
    bytes_per_block: int,
    max_num_seqs: int,
    max_model_len: int,
    block_size: int,
    num_workers: int = 1,
    reserved: int = 0,
    requested_bytes: int = 0,
    num_threads: int = 1,
) -> int:
    """Returns how many blocks to allocate.

    requested: blocks. requested_bytes: of all blocks, where `requested` is 0. Without either, the cache holds
    one sequence of full length, and ROWS_PER_THREAD * num_threads usual ones; it takes at most MEMORY_PART of
    the available memory, divided among the workers that share it. reserved: bytes that something else takes.

    Raises StartupError when not one block fits, or fewer than requested.
    """
    available = available_memory() - reserved
    if blocks := requested_blocks(requested, requested_bytes, bytes_per_block):
        needed = (blocks + 1) * bytes_per_block
        if needed > available:
            flag = "--num-blocks" if requested else "--kv-cache-memory"
            raise StartupError(
                WHAT,
                f"{flag}: {blocks} blocks need {needed >> 20} MiB, but {available >> 20} MiB are available",
                f"ask for less, or leave {flag} out",
            )
        return blocks
    per_sequence = -(-max_model_len // block_size)
    usual = min(max_num_seqs, ROWS_PER_THREAD * num_threads) * -(-min(max_model_len, USUAL_LEN) // block_size)
    useful = min(max_num_seqs * per_sequence, max(per_sequence, usual, SMALL_BYTES // bytes_per_block))
    affordable = int(available * MEMORY_PART / num_workers) // bytes_per_block - 1
    if affordable < 1:
        raise StartupError(
            WHAT,
            f"a block takes {bytes_per_block >> 10} KiB, but {available >> 20} MiB of memory are available",
            "free some memory, or choose a smaller --block-size",
        )
    return min(useful, affordable)


def await_freed_memory() -> None:
    """Waits while the system gets memory back, as from a worker that was killed a moment ago; a few seconds
    at most."""
    before = available_memory()
    for _ in range(_MOST_LOOKS):
        time.sleep(_LOOK_S)
        now = available_memory()
        if now - before < _STEADY_BYTES:
            return
        before = now
