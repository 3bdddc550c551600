"""Events of the prefix cache in the words of vllm.grpc.engine.VllmEngine."""

import time
from collections.abc import Iterator
from typing import Any

from smg_grpc_proto.generated import common_pb2

from frontend.engine.cache_feed import HASH_BYTES, CacheBatch
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32


class KvEventWriter:
    """Turns the batches of one subscription into numbered messages."""

    def __init__(self, tenant: str, sequence_number: int) -> None:
        """tenant: the subscriber's; blocks of others are left out, since none of its requests can find them.
        sequence_number: the subscriber's last one; the first message has the next."""
        self._tenant = tenant
        self._sequence_number = sequence_number
        self._num_events = 0

    def message(self, batch: CacheBatch) -> Any:
        """Returns the message for a batch; a snapshot's first part begins by clearing what was told."""
        self._sequence_number += 1
        message = common_pb2.KvEventBatch(sequence_number=self._sequence_number, timestamp=time.time())
        if batch.num_parts and not batch.part:
            message.events.add(cleared=common_pb2.KvCacheCleared())
        for change in batch.changes:
            if (event := self._event(change)) is not None:
                message.events.append(event)
        if batch.num_parts:
            message.snapshot.index, message.snapshot.count = batch.part, batch.num_parts
            message.snapshot.blocks = batch.num_blocks
            message.snapshot.unknown_before = batch.num_unknown_blocks
        else:
            for event in message.events:
                self._num_events += 1
                event.event_id = self._num_events
        return message

    def _event(self, change: engine_pb2.CacheChange) -> Any:
        if change.HasField("cleared"):
            return common_pb2.KvCacheEvent(cleared=common_pb2.KvCacheCleared())
        if not change.HasField("stored"):
            removed = common_pb2.KvBlocksRemoved(block_hashes=_hashes(change.removed_hashes))
            return common_pb2.KvCacheEvent(removed=removed)
        stored = change.stored
        if stored.tenant != self._tenant:
            return None
        event = common_pb2.KvBlocksStored(blocks=_blocks(stored))
        if stored.parent_hash:
            (event.parent_block_hash,) = _hashes(stored.parent_hash)
        if stored.cache_salt:
            event.cache_salt = stored.cache_salt
        if stored.adapter:
            event.lora_name = stored.adapter
        return common_pb2.KvCacheEvent(stored=event)


def _blocks(stored: engine_pb2.CachedBlocks) -> Iterator[Any]:
    """Yields blocks. An adapter's id is what this wire has room for of the digest: the name may be another
    adapter's later."""
    adapter = int.from_bytes(stored.adapter_digest[:8], "little", signed=True) if stored.adapter else None
    tokens = unpack_u32(stored.token_ids)
    size = len(tokens) * HASH_BYTES // len(stored.hashes)
    for start, block_hash in zip(range(0, len(tokens), size), _hashes(stored.hashes), strict=True):
        yield common_pb2.KvBlock(
            block_hash=block_hash,
            token_ids=tokens[start : start + size],
            block_size=size,
            lora_id=adapter,
        )


def _hashes(column: bytes) -> list[int]:
    """The first eight bytes of each hash, which is what this wire has room for."""
    return [
        int.from_bytes(column[start : start + 8], "little", signed=True)
        for start in range(0, len(column), HASH_BYTES)
    ]
