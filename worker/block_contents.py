"""Which blocks hold what, as the living engine core has said: for the next one, if this one is killed.

Contents are hashes that a worker does not compute; their secret comes with Initialize. The list is right once
all plans that were launched are executed: a plan that writes to a block says before that the block is
forgotten, and a block is named with the plan that fills it, or later.
"""

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32

CONTENT_BYTES = 16


class BlockContents:
    """Contents by block, the least recently cached first."""

    def __init__(self, secret: bytes) -> None:
        """secret: what the contents are made from."""
        self._secret = secret
        self._contents: dict[int, bytes] = {}

    def apply(self, changes: worker_pb2.BlockChanges) -> None:
        """Takes in what a core says. Raises ValueError for columns that do not fit one another."""
        if changes.forgets_all:
            self._contents.clear()
        for block in unpack_u32(changes.forgotten_blocks):
            self._contents.pop(block, None)
        blocks, contents = unpack_u32(changes.kept_blocks), changes.kept_contents
        if len(contents) != CONTENT_BYTES * len(blocks):
            raise ValueError(f"{len(blocks)} cached blocks have contents of {len(contents)} bytes")
        for at, block in enumerate(blocks):
            self._contents[block] = contents[CONTENT_BYTES * at : CONTENT_BYTES * (at + 1)]

    def hand_over(self) -> worker_pb2.KeptCache:
        """Returns all of it, and forgets it: the next core says what it goes on with."""
        kept = worker_pb2.KeptCache(
            secret=self._secret,
            blocks=pack_u32(list(self._contents)),
            contents=b"".join(self._contents.values()),
        )
        self._contents.clear()
        return kept
