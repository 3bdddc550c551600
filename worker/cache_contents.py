"""Which blocks and checkpoints of states hold what, as the living engine core has said: for the next one, if
this one is killed.

Contents are hashes that a worker does not compute; their secret comes with Initialize. The lists are right
once all plans that were launched are executed: a plan that writes to a block or a checkpoint says before that
it is forgotten, and it is named with the plan that fills it, or later.
"""

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32

CONTENT_BYTES = 16


class CacheContents:
    """Contents by block and by checkpoint, the least recently cached first."""

    def __init__(self, secret: bytes) -> None:
        """secret: what the contents are made from."""
        self._secret = secret
        self._contents: dict[int, bytes] = {}
        self._checkpoints: dict[int, bytes] = {}

    def apply(self, changes: worker_pb2.KeptChanges) -> None:
        """Takes in what a core says. Raises ValueError for columns that do not fit one another."""
        if changes.forgets_all:
            self._contents.clear()
        if changes.forgets_all_checkpoints:
            self._checkpoints.clear()
        _change(self._contents, changes.forgotten_blocks, changes.kept_blocks, changes.kept_contents)
        _change(
            self._checkpoints,
            changes.forgotten_checkpoints,
            changes.kept_checkpoints,
            changes.kept_checkpoint_contents,
        )

    def hand_over(self) -> worker_pb2.KeptCache:
        """Returns all of it, and forgets it: the next core says what it goes on with."""
        kept = worker_pb2.KeptCache(
            secret=self._secret,
            blocks=pack_u32(list(self._contents)),
            contents=b"".join(self._contents.values()),
            checkpoints=pack_u32(list(self._checkpoints)),
            checkpoint_contents=b"".join(self._checkpoints.values()),
        )
        self._contents.clear()
        self._checkpoints.clear()
        return kept


def _change(known: dict[int, bytes], forgotten: bytes, kept: bytes, contents: bytes) -> None:
    """Removes the places of one column from `known`, and adds those of another with their contents."""
    for place in unpack_u32(forgotten):
        known.pop(place, None)
    places = unpack_u32(kept)
    if len(contents) != CONTENT_BYTES * len(places):
        raise ValueError(f"contents of {len(places)} places have {len(contents)} bytes")
    for at, place in enumerate(places):
        known[place] = contents[CONTENT_BYTES * at : CONTENT_BYTES * (at + 1)]
