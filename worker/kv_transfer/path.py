"""What carries blocks from one worker to another."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol


class TransferFailed(Exception):
    """Blocks were not read, or only some of them."""


class Reading(Protocol):
    """Reads blocks of another worker, once, in a thread of its own."""

    def run(self, address: str, blocks: Sequence[int], targets: Sequence[int]) -> None:
        """Reads blocks of another worker to targets here. Raises TransferFailed; some may be written then."""

    def stop(self) -> None:
        """Has run() raise soon, after which nothing is written to a target. Idempotent; of another thread."""


class DataPath(Protocol):
    """How blocks get from one worker to another."""

    address: str
    """Where others read the blocks of this worker, in the path's own form."""

    def reading(self) -> Reading:
        """Returns what reads blocks of another worker, once."""


def transfer_key(cache_key: bytes) -> bytes:
    """Returns the key of MACs. cache_key: as in Initialize."""
    return blake2b(b"blocks", digest_size=32, key=cache_key).digest()
