"""Publishes what a service's prefix cache holds over ZeroMQ, as vLLM does.

Indexers of KV caches, llm-d's among them, subscribe to it. A message has three frames: the topic, its number
(8 bytes, big-endian, from 0, without gaps), and a batch in msgpack: [seconds since 1970, [event, ...], rank].
An event is a map with vLLM's fields: {"type": "BlockRemoved", "block_hashes": [...], "medium": "GPU"}.
"""

import asyncio
import contextlib
import ipaddress
import logging
import signal
from collections import deque
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import grpc
import msgpack
import zmq
import zmq.asyncio
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc

from pagewire.cli.connect import client_options
from pagewire.errors import StartupError
from pagewire.flags import UsageError
from pagewire_client.transport.channel import options as channel_options
from pagewire_client.transport.channel import target
from pagewire_client.transport.credentials import Credentials
from pagewire_gateways.kv_events_command import KvEventsConfig

log = logging.getLogger(__name__)

MEDIUM = "GPU"
"""vLLM's word for the memory that the model reads, on a CPU too."""
END = (-1).to_bytes(8, "big", signed=True)
"""Number of the message that ends a replay."""
RETRY_S = 1.0
"""Between two subscriptions."""
REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Answers that another subscription would get as well."""


async def publish(config: KvEventsConfig) -> None:
    """Publishes until a signal. Raises StartupError and UsageError."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with zmq.asyncio.Context() as context:
        async with Publisher(context, config) as publisher:
            await asyncio.gather(publisher.answer_replays(), follow(config, publisher))


class Publisher:
    """Numbers batches, publishes them, and keeps the last ones for replays."""

    def __init__(self, context: zmq.asyncio.Context, config: KvEventsConfig) -> None:
        """Binds the sockets. Raises UsageError."""
        self._topic = config.topic.encode()
        self._number = 0
        self._kept = deque[tuple[bytes, bytes]](maxlen=config.buffer_steps)
        self.events = _bind(context, zmq.PUB, "--endpoint", config.endpoint)
        self.replays = None
        if config.replay_endpoint:
            self.replays = _bind(context, zmq.ROUTER, "--replay-endpoint", config.replay_endpoint)

    async def __aenter__(self) -> "Publisher":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.events.close(linger=0)
        if self.replays is not None:
            self.replays.close(linger=0)

    async def publish(self, batch: common_pb2.KvEventBatch) -> None:
        """Sends a batch to all that subscribe now."""
        number, payload = self._number.to_bytes(8, "big"), encode(batch)
        self._number += 1
        self._kept.append((number, payload))
        await self.events.send_multipart((self._topic, number, payload))

    async def answer_replays(self) -> None:
        """Sends all kept messages from a number on to each REQ socket that sends one, then END."""
        while self.replays is not None:
            subscriber, *_, first = await self.replays.recv_multipart()
            kept = [message for message in self._kept if message[0] >= first] if len(first) == 8 else []
            for number, payload in (*kept, (END, b"")):
                await self.replays.send_multipart((subscriber, b"", number, payload))


async def follow(config: KvEventsConfig, publisher: Publisher) -> None:
    """Subscribes at the service again and again; each subscription begins with all that the cache holds.
    Raises StartupError where the service refuses."""
    credentials = Credentials(**client_options(config))
    while True:
        try:
            async with _channel(config.address, credentials) as channel:
                stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
                request = common_pb2.SubscribeKvEventsRequest()
                async for batch in stub.SubscribeKvEvents(request, metadata=credentials.metadata()):
                    await publisher.publish(batch)
                log.warning("%s has ended the subscription", config.address)
        except grpc.aio.AioRpcError as error:
            if error.code() in REFUSALS:
                todo = "events are for admins, of a service with --vllm-engine: --token-file"
                raise StartupError(
                    f"{config.address} refuses events of its cache", error.details() or "", todo
                ) from None
            log.warning("no events from %s: %s, %s", config.address, error.code().name, error.details())
        await asyncio.sleep(RETRY_S)


def encode(batch: common_pb2.KvEventBatch) -> bytes:
    """Returns a batch as vLLM's publisher writes it. All caches of a service are one, of rank 0."""
    payload = msgpack.packb([batch.timestamp, [*map(_event, batch.events)], 0])
    assert isinstance(payload, bytes)
    return payload


def _event(event: common_pb2.KvCacheEvent) -> dict[str, Any]:
    if event.HasField("cleared"):
        return {"type": "AllBlocksCleared"}
    if event.HasField("removed"):
        hashes = [*map(_unsigned, event.removed.block_hashes)]
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": MEDIUM}
    stored, first = event.stored, event.stored.blocks[0]
    has_parent = stored.HasField("parent_block_hash")
    written = {
        "type": "BlockStored",
        "block_hashes": [_unsigned(block.block_hash) for block in stored.blocks],
        "parent_block_hash": _unsigned(stored.parent_block_hash) if has_parent else None,
        "token_ids": [token for block in stored.blocks for token in block.token_ids],
        "block_size": first.block_size,
        "lora_id": first.lora_id if first.HasField("lora_id") else None,
        "medium": MEDIUM,
        "lora_name": stored.lora_name if stored.HasField("lora_name") else None,
    }
    keys = [*_extra_keys(stored)]
    return written | {"extra_keys": keys} if any(keys) else written


def _extra_keys(stored: common_pb2.KvBlocksStored) -> Iterator[list[str] | None]:
    """Yields what makes blocks of equal tokens differ, per block: an adapter's name, and at the first block
    of a sequence its salt."""
    name = [stored.lora_name] if stored.HasField("lora_name") else []
    for number in range(len(stored.blocks)):
        begins = not (number or stored.HasField("parent_block_hash"))
        yield [*name, *([stored.cache_salt] if begins and stored.cache_salt else [])] or None


def _unsigned(block_hash: int) -> int:
    return block_hash % (1 << 64)


def _bind(context: zmq.asyncio.Context, kind: int, flag_name: str, endpoint: str) -> zmq.asyncio.Socket:
    socket = context.socket(kind)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise UsageError(f"cannot listen on {flag_name} {endpoint}", str(error)) from None
    if not _is_local(endpoint):
        log.warning(
            "%s %s is not on the loopback address: anyone there reads prompts' tokens", flag_name, endpoint
        )
    return socket


def _is_local(endpoint: str) -> bool:
    """Whether only this host reaches it."""
    host = urlsplit(endpoint).hostname
    with contextlib.suppress(ValueError):
        return not endpoint.startswith("tcp:") or ipaddress.ip_address(host or "").is_loopback
    return False


def _channel(address: str, credentials: Credentials) -> grpc.aio.Channel:
    """Returns a channel with the options of the clients: a peer that falls silent is noticed."""
    options = channel_options(address, credentials)
    if credentials.secure:
        return grpc.aio.secure_channel(target(address), credentials.for_channel(), options)
    return grpc.aio.insecure_channel(target(address), options)
