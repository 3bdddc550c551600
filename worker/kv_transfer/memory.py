"""The blocks of a worker as bytes, for threads that send and receive them beside the steps. No torch."""

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
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


@dataclass(frozen=True, slots=True)
class Span:
    """Where the blocks of a pool are in memory, all sizes in bytes: of each of its planes, a block is one
    piece."""

    address: int
    num_bytes: int
    num_planes: int
    plane_stride: int
    block_stride: int
    piece: int

    def numbers(self) -> tuple[int, ...]:
        """Returns the fields, in order."""
        return astuple(self)

    def pieces(self, block: int) -> npt.NDArray[np.uint64]:
        """Returns address, size and 0 of each piece of a block, in the order of its bytes: [P, 3]."""
        found = np.zeros((self.num_planes, 3), np.uint64)
        found[:, 0] = (
            self.address + block * self.block_stride + np.arange(self.num_planes) * self.plane_stride
        )
        found[:, 1] = self.piece
        return found


class PoolMemory:
    """The blocks of a cache in host memory: those of all its pools, one behind the other."""

    def __init__(self, pools: Sequence[npt.NDArray[Any]]) -> None:
        """pools: uint8 [P, B, ...] each, all with the same B, of which the last is for padding; those of a
        block and plane are in one piece."""
        self._pools = pools
        shapes = [(pool.shape[0], *pool.shape[2:]) for pool in pools]
        self._sizes = [int(np.prod(shape)) for shape in shapes]
        self.block_bytes = sum(self._sizes)
        self.num_blocks = pools[0].shape[1] - 1 if pools else 0
        self.layout = hashlib.sha256(repr((__version__, shapes)).encode()).digest()

    def spans(self) -> list[Span]:
        """Returns where the pools are."""
        return [
            Span(
                address=pool.ctypes.data,
                num_bytes=pool.nbytes,
                num_planes=pool.shape[0],
                plane_stride=pool.strides[0],
                block_stride=pool.strides[1],
                piece=size // pool.shape[0],
            )
            for pool, size in zip(self._pools, self._sizes, strict=True)
        ]

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
