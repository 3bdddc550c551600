"""The paged KV cache: how many blocks, and the memory that holds them.

One tensor [layers, 2, B, K, S, D] (2: keys, values), so that copying a block is one operation for
all layers; why K stands before S is said in kernels.ops.attention.paged_attention. The last block is the
worker's own: padding is written to it and read from it, so that it holds finite values and nobody's.
"""

import os
from pathlib import Path

import torch

from kernels.cpu.runtime import arena as memory
from kernels.ops.attention.copy_blocks import copy_blocks
from kernels.ops.attention.paged_attention import CacheShape
from pagewire.errors import StartupError
from pagewire.host.cgroups import memory_left
from worker.layers.attention import LayerCache

MEMORY_PART = 0.5
"""Of the memory that is available once the weights are loaded, what the cache may take on a CPU.
The rest is for activations, the other processes and whatever else runs there."""
WHAT = "cannot allocate the KV cache"
NO_MEMORY = (MemoryError, RuntimeError, ValueError)
"""What numpy and torch raise when an allocation fails."""


class KVCache:
    """The cache of one worker. `layers[i]` is what layer i reads and writes."""

    def __init__(self, num_layers: int, num_blocks: int, shape: CacheShape) -> None:
        """num_blocks: without the dummy block, whose id is shape.pad_block. Raises StartupError."""
        assert shape.pad_block == num_blocks
        self.num_blocks, self.shape = num_blocks, shape
        size = (num_layers, 2, num_blocks + 1, shape.num_kv_heads, shape.block_size, shape.head_dim)
        try:
            self.tensor = zeros(size, shape.dtype, shape.device)
        except NO_MEMORY as error:
            why = f"{num_blocks} blocks do not fit: {error}"
            raise StartupError(WHAT, why, "ask for fewer blocks") from error
        self.layers = [LayerCache(key=layer[0], value=layer[1]) for layer in self.tensor]

    @property
    def num_bytes(self) -> int:
        """Of the whole cache."""
        return self.tensor.nbytes

    def copy_blocks(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copies blocks [C] to blocks [C] in all layers."""
        copy_blocks(self.tensor, sources, targets)


def block_bytes(
    num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> int:
    """Bytes of one block in all layers."""
    return num_layers * 2 * num_kv_heads * block_size * head_dim * dtype.itemsize


def choose_num_blocks(
    requested: int,
    bytes_per_block: int,
    max_num_seqs: int,
    max_model_len: int,
    block_size: int,
    num_workers: int = 1,
) -> int:
    """Blocks to allocate. requested: 0 for what max_num_seqs sequences of full length can use.

    That is cut to MEMORY_PART of the available memory, over the workers that share it. Raises StartupError
    when not one block fits, or not what was requested.
    """
    available = available_memory()
    if requested:
        needed = (requested + 1) * bytes_per_block
        if needed > available:
            raise StartupError(
                WHAT,
                f"num_blocks = {requested} needs {needed >> 20} MiB, but {available >> 20} MiB are available",
                "ask for fewer blocks, or leave --num-blocks out",
            )
        return requested
    useful = max_num_seqs * -(-max_model_len // block_size)
    affordable = int(available * MEMORY_PART / num_workers) // bytes_per_block - 1
    if affordable < 1:
        raise StartupError(
            WHAT,
            f"a block takes {bytes_per_block >> 10} KiB, but {available >> 20} MiB of memory are available",
            "free some memory, or choose a smaller --block-size",
        )
    return min(useful, affordable)


def available_memory() -> int:
    """Bytes that this process may still use: the machine's, or the control group's if that is less."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    return int(min(available, memory_left()))


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU in pages that the system hands out when they are first written.

    Raises one of NO_MEMORY when they do not fit.
    """
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    return memory.zeros(size, dtype)
