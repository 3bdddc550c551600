"""The prefix cache of a core whose worker outlives it: it goes on with what the core before it had cached."""

import logging

from engine_core.kv_cache.block_changes import BlockChanges
from engine_core.kv_cache.prefix_cache import HASH_BYTES, PrefixCache
from pagewire.internal.v1.worker_pb2 import KeptCache
from pagewire.ipc.columns import unpack_u32

log = logging.getLogger(__name__)


def track(cache: PrefixCache, changes: BlockChanges, secret: bytes, kept: KeptCache) -> None:
    """Has the worker follow the cache. To be called before any request arrives.

    secret: for a worker that has just loaded. kept: what an adopted one holds; empty: nothing.
    """
    cache.track(changes, kept.secret or secret)
    try:
        cache.restore(_contents(kept))
    except ValueError as error:
        log.error("the cache of the last engine core is lost: %s", error)
    else:
        if kept.blocks:
            log.info("%d cached blocks of the last engine core are found again", cache.num_blocks)


def _contents(kept: KeptCache) -> dict[int, bytes]:
    """Returns contents by block. Raises ValueError when the columns do not fit one another."""
    blocks, size = unpack_u32(kept.blocks), HASH_BYTES
    if len(kept.contents) != size * len(blocks) or len(set(blocks)) != len(blocks):
        raise ValueError(f"{len(blocks)} blocks, {len(kept.contents)} bytes of contents")
    return {block: kept.contents[size * at : size * (at + 1)] for at, block in enumerate(blocks)}
