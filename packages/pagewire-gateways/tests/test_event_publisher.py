"""`pagewire kv-events`: messages as vLLM writes them, in order, also for those that missed some."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgpack
import pytest
import zmq
import zmq.asyncio
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from pagewire import flags
from pagewire.errors import StartupError
from pagewire.flags import UsageError
from pagewire.internal.v1 import engine_pb2
from pagewire_gateways.kv_events_command import CONFIG, KvEventsConfig
from pagewire_gateways.vllm import event_publisher
from pagewire_gateways.vllm.event_publisher import END, Publisher, encode, follow, publish
from tests.frontend.fakes import run_service
from tests.patience import soon

LOCAL = "tcp://127.0.0.1:0"


def stored(*numbers: int, parent: int | None = None, salt: str = "", lora: str = "") -> Any:
    """Blocks of two tokens."""
    blocks = [
        common_pb2.KvBlock(
            block_hash=number,
            token_ids=[abs(number), 7],
            block_size=2,
            **({"lora_id": -5} if lora else {}),  # type: ignore[arg-type]
        )
        for number in numbers
    ]
    event = common_pb2.KvBlocksStored(blocks=blocks)
    if parent is not None:
        event.parent_block_hash = parent
    if salt:
        event.cache_salt = salt
    if lora:
        event.lora_name = lora
    return common_pb2.KvCacheEvent(stored=event)


def batch(*events: Any) -> Any:
    """A message of SubscribeKvEvents."""
    return common_pb2.KvEventBatch(timestamp=1.5, events=events)


CLEARED = common_pb2.KvCacheEvent(cleared=common_pb2.KvCacheCleared())
REMOVED = common_pb2.KvCacheEvent(removed=common_pb2.KvBlocksRemoved(block_hashes=[-1, 3]))
PLAIN = {"parent_block_hash": None, "lora_id": None, "lora_name": None, "block_size": 2, "medium": "GPU"}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (CLEARED, {"type": "AllBlocksCleared"}),
        (REMOVED, {"type": "BlockRemoved", "block_hashes": [2**64 - 1, 3], "medium": "GPU"}),
        (
            stored(-2, 9),
            PLAIN | {"type": "BlockStored", "block_hashes": [2**64 - 2, 9], "token_ids": [2, 7, 9, 7]},
        ),
        (
            stored(8, 9, salt="s", lora="legal"),
            PLAIN
            | {"type": "BlockStored", "block_hashes": [8, 9], "token_ids": [8, 7, 9, 7]}
            | {"lora_id": -5, "lora_name": "legal", "extra_keys": [["legal", "s"], ["legal"]]},
        ),
        (
            stored(9, parent=-8, salt="s"),
            PLAIN
            | {"type": "BlockStored", "block_hashes": [9], "token_ids": [9, 7]}
            | {"parent_block_hash": 2**64 - 8},
        ),
    ],
    ids=["cleared", "removed", "stored", "salt and adapter", "goes on"],
)
def test_events_have_the_fields_of_vllm(event: Any, expected: dict[str, Any]) -> None:
    """The salt is in the keys of a sequence's first block alone."""
    assert msgpack.unpackb(encode(batch(event))) == [1.5, [expected], 0]


def config(address: str = "", **changes: Any) -> KvEventsConfig:
    """Sockets on free ports."""
    fields = {"address": address, "endpoint": LOCAL, "replay_endpoint": LOCAL, "topic": "kv@here@m"} | changes
    return KvEventsConfig(**fields)


def address_of(socket: zmq.asyncio.Socket | None) -> str:
    assert socket is not None
    return str(socket.last_endpoint.decode())


async def replayed(context: zmq.asyncio.Context, publisher: Publisher, first: bytes) -> list[bytes]:
    """The numbers of the messages that come back for this one, END without."""
    numbers: list[bytes] = []
    with context.socket(zmq.DEALER) as request:
        request.setsockopt(zmq.LINGER, 0)
        request.connect(address_of(publisher.replays))
        await request.send_multipart((b"", first))
        while True:
            empty, number, payload = await soon(request.recv_multipart())
            assert empty == b""
            if number == END:
                assert payload == b""
                return numbers
            assert msgpack.unpackb(payload)[0] == 1.5
            numbers.append(number)


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


async def test_subscribers_get_numbered_messages_under_the_topic() -> None:
    with zmq.asyncio.Context() as context:
        async with Publisher(context, config()) as publisher:
            with context.socket(zmq.SUB) as subscriber:
                subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
                subscriber.connect(address_of(publisher.events))
                while not await subscriber.poll(10):  # until the subscription is known
                    await publisher.publish(batch(CLEARED))
                topic, first, payload = await subscriber.recv_multipart()
                while await subscriber.poll(0):
                    _, last, _ = await subscriber.recv_multipart()
                    assert int.from_bytes(last, "big") == int.from_bytes(first, "big") + 1
                    first = last
                await publisher.publish(batch(REMOVED))
                again, following, _ = await soon(subscriber.recv_multipart())
    assert topic == again == b"kv@here@m"
    assert int.from_bytes(following, "big") == int.from_bytes(first, "big") + 1
    assert msgpack.unpackb(payload) == [1.5, [{"type": "AllBlocksCleared"}], 0]


async def test_what_was_missed_is_sent_again() -> None:
    with zmq.asyncio.Context() as context:
        async with Publisher(context, config(buffer_steps=3)) as publisher:
            for _ in range(5):
                await publisher.publish(batch(CLEARED))
            replays = asyncio.ensure_future(publisher.answer_replays())
            assert await replayed(context, publisher, number(3)) == [number(3), number(4)]
            assert await replayed(context, publisher, number(0)) == [number(2), number(3), number(4)]
            for beyond in (number(9), b"", b"three"):
                assert await replayed(context, publisher, beyond) == []
            replays.cancel()


class Scripted(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Ends each subscription after one batch, until the third, which it refuses."""

    def __init__(self) -> None:
        self.metadata: list[str] = []

    async def SubscribeKvEvents(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.metadata.append(dict(context.invocation_metadata()).get("authorization", ""))
        if len(self.metadata) == 3:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not for you")
        yield batch(CLEARED)
        if len(self.metadata) == 2:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "it restarts")


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Scripted, str]]:
    """A service, and its address."""
    server, servicer = grpc.aio.server(), Scripted()
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_it_subscribes_again_until_it_is_refused(monkeypatch, tmp_path, caplog) -> None:
    monkeypatch.setattr(event_publisher, "RETRY_S", 0.0)
    token = tmp_path / "token"
    token.write_text("t0ken\n")
    with zmq.asyncio.Context() as context:
        async with Publisher(context, config()) as publisher, scripted() as (servicer, address):
            replays = asyncio.ensure_future(publisher.answer_replays())
            with pytest.raises(StartupError, match="refuses events of its cache") as refused:
                await follow(config(address, token_file=str(token)), publisher)
            assert await replayed(context, publisher, number(0)) == [number(0), number(1)]
            replays.cancel()
    assert refused.value.why == "not for you" and servicer.metadata == ["Bearer t0ken"] * 3
    assert "has ended the subscription" in caplog.text and "UNAVAILABLE, it restarts" in caplog.text


async def test_a_service_without_the_protocol_is_named(checkpoint) -> None:
    with zmq.asyncio.Context() as context:
        async with Publisher(context, config()) as publisher, run_service(checkpoint) as service:
            with pytest.raises(StartupError, match="refuses events of its cache"):
                await follow(config(f"127.0.0.1:{service.port}"), publisher)


async def test_events_of_a_service_are_published(checkpoint) -> None:
    """The snapshot that the subscription begins with is the first message."""
    with zmq.asyncio.Context() as context:
        async with (
            Publisher(context, config()) as publisher,
            run_service(checkpoint, vllm_engine=True) as service,
        ):
            tasks = [
                asyncio.ensure_future(publisher.answer_replays()),
                asyncio.ensure_future(follow(config(f"127.0.0.1:{service.port}"), publisher)),
            ]
            watch = (await soon(service.engine.watches.get())).watch
            for number_of_parts in (1, 0):
                message = engine_pb2.CacheChanges(
                    watch=watch, num_parts=number_of_parts, changes=[engine_pb2.CacheChange(cleared={})]
                )
                await service.engine.send(engine_pb2.EngineMessage(cache_changes=message))
            while len(publisher._kept) < 2:
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    (first, snapshot), (second, changes) = publisher._kept
    assert (first, second) == (number(0), number(1))
    assert [len(msgpack.unpackb(each)[1]) for each in (snapshot, changes)] == [2, 1]


async def test_an_endpoint_that_cannot_be_had_is_named(caplog) -> None:
    """The name is its own: that of another run on this machine would be taken."""
    own = f"ipc://@pagewire-test-{os.getpid()}"
    with zmq.asyncio.Context() as context:
        with pytest.raises(UsageError, match="cannot listen on --endpoint udp://x"):
            Publisher(context, config(endpoint="udp://x"))
        async with Publisher(context, config(endpoint="tcp://*:0", replay_endpoint=own)):
            assert "--endpoint tcp://*:0 is not on the loopback address" in caplog.text
            assert "--replay-endpoint" not in caplog.text


async def test_a_signal_ends_it(monkeypatch) -> None:
    """SIGTERM, while it waits for a service that does not answer: what the command returns after."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", handlers.__setitem__, raising=False)
    published = asyncio.ensure_future(publish(config("127.0.0.1:1")))
    while not handlers:
        await asyncio.sleep(0)
    handlers[signal.SIGTERM]()
    with pytest.raises(asyncio.CancelledError):
        await soon(published)


def test_the_flags_of_the_command() -> None:
    parsed = flags.parse(CONFIG, ["--topic=t", "--buffer-steps=5"], command="kv-events")
    assert (parsed.topic, parsed.buffer_steps, parsed.endpoint) == ("t", 5, "tcp://127.0.0.1:5557")
    with pytest.raises(UsageError, match="--buffer-steps"):
        flags.parse(CONFIG, ["--buffer-steps=0"], command="kv-events")
