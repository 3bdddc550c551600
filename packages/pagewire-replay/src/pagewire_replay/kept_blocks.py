"""What an adopted worker's blocks and checkpoints of states hold, in replays.

A recording has such contents as hashes, and no tokens of them. So a replay knows blocks by the recorded hash
of their prefix, wherever there is one, in place of the hash of the tokens that stand for it: what the
recorded core found among the adopted blocks, the replay finds there too.
"""

import sys
from collections.abc import Mapping

from engine_core.kv_cache.prefix_cache import HASH_BYTES as WHOLE_HASH_BYTES
from engine_core.kv_cache.prefix_cache import PrefixCache, block_hash
from engine_core.request import block_content
from pagewire.ipc.columns import unpack_u32
from pagewire_replay.reader import read_hashes
from pagewire_replay.reconstructed_requests import ReconstructedRequests, RecordedRequest

_TOKEN_BYTES = 4


def restore_kept(columns: Mapping[str, bytes], recorded: ReconstructedRequests, cache: PrefixCache) -> None:
    """Has a replay's cache begin with what was kept. To be called before any request arrives."""
    cache.hash_block = RecordedHashes(recorded, cache)
    cache.restore(
        _contents(columns["blocks"], columns["hashes"]),
        _contents(columns["checkpoints"], columns["checkpoint_hashes"]),
    )


class RecordedHashes:
    """Hashes of blocks in a replay, in place of engine_core.kv_cache.prefix_cache.block_hash."""

    def __init__(self, recorded: ReconstructedRequests, cache: PrefixCache) -> None:
        """cache: of the replay; only its namespaces are asked for."""
        self._recorded = recorded
        self._by_tokens: dict[tuple[bytes, bytes], bytes] = {}  # (hash of the prefix before, content)
        for request in recorded if recorded.has_tokens else ():
            self._learn(request, cache)

    def __call__(self, parent: bytes, content: bytes) -> bytes:
        """Returns the hash of a prefix that is one block longer than `parent`."""
        end = _TOKEN_BYTES * self._recorded.block_size  # content hashes follow
        last = int.from_bytes(content[end - _TOKEN_BYTES : end], sys.byteorder)
        known = self._recorded.hash_of(last) or self._by_tokens.get((parent, content))
        return block_hash(parent, content) if known is None else _lengthened(known)

    def _learn(self, request: RecordedRequest, cache: PrefixCache) -> None:
        """Takes in the blocks of a request whose tokens are recorded."""
        replayed, size = self._recorded.request(request.number), self._recorded.block_size
        root, contents = cache.namespace(replayed), replayed.content_hashes
        for tokens, hashes in self._recorded.sequences(request) if root else ():
            parent = root
            for block in range(len(tokens) // size):
                start, end = block * size, (block + 1) * size
                content = block_content(tokens[start:end].tobytes(), contents, start, end)
                if block in hashes:
                    self._by_tokens[parent, content] = hashes[block]
                parent = self(parent, content)


def _contents(places: bytes, hashes: bytes) -> dict[int, bytes]:
    known = read_hashes(hashes)
    return {place: _lengthened(known[at]) for at, place in enumerate(unpack_u32(places))}


def _lengthened(short: bytes) -> bytes:
    return short.ljust(WHOLE_HASH_BYTES, b"\0")
