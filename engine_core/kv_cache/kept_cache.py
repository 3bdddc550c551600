"""The prefix cache of a core whose worker outlives it: it goes on with what the core before it had cached."""

import logging

from engine_core.kv_cache.kept_changes import KeptChanges
from engine_core.kv_cache.prefix_cache import HASH_BYTES, PrefixCache
from pagewire.internal.v1.worker_pb2 import KeptCache
from pagewire.ipc.columns import unpack_u32

log = logging.getLogger(__name__)


Contents = dict[int, bytes]
"""By block, or by checkpoint of a state; the least recently cached first."""


def track(
    cache: PrefixCache, changes: KeptChanges, secret: bytes, kept: KeptCache
) -> tuple[Contents, Contents]:
    """Has the worker follow the cache. To be called before any request arrives.

    secret: for a worker that has just loaded. kept: what an adopted one holds; empty: nothing. Returns the
    blocks and checkpoints that the cache goes on with.
    """
    cache.track(changes, kept.secret or secret)
    try:
        blocks = _contents("blocks", kept.blocks, kept.contents)
        checkpoints = _contents("checkpoints", kept.checkpoints, kept.checkpoint_contents)
        cache.restore(blocks, checkpoints)
    except ValueError as error:
        log.error("the cache of the last engine core is lost: %s", error)
        return {}, {}
    if blocks:
        log.info("%d cached blocks of the last engine core are found again", cache.num_blocks)
    if checkpoints:
        log.info("%d checkpoints of states of the last engine core are found again", len(checkpoints))
    return blocks, checkpoints


def _contents(what: str, places: bytes, contents: bytes) -> Contents:
    """Returns contents by place. Raises ValueError when the columns do not fit one another."""
    numbers, size = unpack_u32(places), HASH_BYTES
    if len(contents) != size * len(numbers) or len(set(numbers)) != len(numbers):
        raise ValueError(f"{len(numbers)} {what}, {len(contents)} bytes of contents")
    return {number: contents[size * at : size * (at + 1)] for at, number in enumerate(numbers)}
