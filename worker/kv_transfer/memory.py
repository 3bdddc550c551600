"""The blocks of a worker as bytes, for threads that send and receive them beside the steps. No torch."""

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pagewire import __version__


class BlockMemory(Protocol):
    """The blocks of one worker. No step writes to a block while it is read or written here."""

    block_bytes: int
    """Size of each block."""
    layout: bytes
    """Digest of what the bytes of a block mean: only memories of one layout exchange blocks."""
    num_blocks: int
    """Blocks are numbered from 0."""

    def read(self, block: int) -> bytes:
        """Returns the bytes of a block."""

    def write(self, block: int, content: bytes) -> None:
        """Replaces the bytes of a block; content: [block_bytes]."""


class PoolMemory:
    """The blocks of a cache in host memory: those of all its pools, one behind the other."""

    def __init__(self, pools: Sequence[npt.NDArray[Any]]) -> None:
        """pools: uint8 [P, B, ...] each, all with the same B, of which the last is for padding."""
        self._pools = pools
        shapes = [(pool.shape[0], *pool.shape[2:]) for pool in pools]
        self._sizes = [int(np.prod(shape)) for shape in shapes]
        self.block_bytes = sum(self._sizes)
        self.num_blocks = pools[0].shape[1] - 1 if pools else 0
        self.layout = hashlib.sha256(repr((__version__, shapes)).encode()).digest()

    def read(self, block: int) -> bytes:
        return b"".join(pool[:, block].tobytes() for pool in self._pools)

    def write(self, block: int, content: bytes) -> None:
        at = 0
        for pool, size in zip(self._pools, self._sizes, strict=True):
            target = pool[:, block]
            target[...] = np.frombuffer(content, np.uint8, size, at).reshape(target.shape)
            at += size


class EmptyMemory:
    """Blocks without bytes, of a device that computes no keys and values."""

    def __init__(self, num_blocks: int) -> None:
        self.block_bytes, self.num_blocks = 0, num_blocks
        self.layout = hashlib.sha256(__version__.encode()).digest()

    def read(self, block: int) -> bytes:
        return b""

    def write(self, block: int, content: bytes) -> None:
        """Nothing is kept."""
