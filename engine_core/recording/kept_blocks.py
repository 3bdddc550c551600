"""What an adopted worker's blocks and checkpoints of states hold, in recordings and in their replays.

A recording has such contents as hashes, and no tokens of them. So a replay knows blocks by the recorded hash
of their prefix, wherever there is one, in place of the hash of the tokens that stand for it: what the
recorded core found among the adopted blocks, the replay finds there too.
"""

import sys
from collections.abc import Mapping

from engine_core.kv_cache.prefix_cache import HASH_BYTES as WHOLE_HASH_BYTES
from engine_core.kv_cache.prefix_cache import PrefixCache, block_hash
from engine_core.recording.beams import HASH_BYTES
from engine_core.recording.reconstructed_requests import ReconstructedRequests, hashes_of_blocks
from pagewire.internal.v1.recording_pb2 import RecordedKeptCache
from pagewire.ipc.columns import pack_u32, unpack_u32

_TOKEN_BYTES = 4


def write_kept(
    blocks: Mapping[int, bytes], checkpoints: Mapping[int, bytes], record: RecordedKeptCache
) -> None:
    """Writes contents by block, and by checkpoint, the least recently used first."""
    record.blocks = pack_u32(list(blocks))
    record.block_hashes = _shortened(blocks)
    record.checkpoints = pack_u32(list(checkpoints))
    record.checkpoint_hashes = _shortened(checkpoints)


def restore_kept(record: RecordedKeptCache, recorded: ReconstructedRequests, cache: PrefixCache) -> None:
    """Has a replay's cache begin with what was kept. To be called before any request arrives."""
    cache.hash_block = RecordedHashes(recorded, cache)
    cache.restore(
        _contents(record.blocks, record.block_hashes), _contents(record.checkpoints, record.checkpoint_hashes)
    )


class RecordedHashes:
    """Hashes of blocks in a replay, in place of engine_core.kv_cache.prefix_cache.block_hash."""

    def __init__(self, recorded: ReconstructedRequests, cache: PrefixCache) -> None:
        """cache: of the replay; only its namespaces are asked for."""
        self._recorded = recorded
        self._by_tokens: dict[tuple[bytes, bytes], bytes] = {}  # (hash of the prefix before, content)
        if recorded.has_tokens:
            for number in recorded.numbers():
                self._learn(number, cache)

    def __call__(self, parent: bytes, content: bytes) -> bytes:
        """Returns the hash of a prefix that is one block longer than `parent`."""
        last = int.from_bytes(content[-_TOKEN_BYTES:], sys.byteorder)
        known = self._recorded.hash_of(last) or self._by_tokens.get((parent, content))
        return block_hash(parent, content) if known is None else _lengthened(known)

    def _learn(self, number: int, cache: PrefixCache) -> None:
        """Takes in the blocks of a request whose tokens are recorded."""
        root, size = cache.namespace(self._recorded.request(number)), self._recorded.block_size
        for tokens, hashes in self._recorded.sequences(number) if root else ():
            parent = root
            for block in range(len(tokens) // size):
                content = tokens[block * size : (block + 1) * size].tobytes()
                if block in hashes:
                    self._by_tokens[parent, content] = hashes[block]
                parent = self(parent, content)


def _contents(places: bytes, hashes: bytes) -> dict[int, bytes]:
    known = hashes_of_blocks(hashes, 0)
    return {place: _lengthened(known[at]) for at, place in enumerate(unpack_u32(places))}


def _shortened(contents: Mapping[int, bytes]) -> bytes:
    return b"".join(content[:HASH_BYTES] for content in contents.values())


def _lengthened(short: bytes) -> bytes:
    return short.ljust(WHOLE_HASH_BYTES, b"\0")
