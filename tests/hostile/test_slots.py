"""A client that sends halves, resets or does not read takes nothing that others need, and not for long."""

import asyncio
from contextlib import ExitStack

import grpc
import h2.events
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend.auth.caller import ANONYMOUS, Caller
from frontend.auth.tokens import digest_of, entry_line
from frontend.call.limits import MAX_REQUEST_STREAMS, ConcurrencyLimits
from frontend.call.messages import MAX_HELD_BYTES, MAX_RECEIVED_BYTES
from frontend.errors import FrontendFull
from pagewire.config import FrontendConfig
from pagewire.v1 import model_pb2
from pagewire_gateways.protos import open_inference_pb2 as oip
from tests.frontend.fakes import make_request, run_service, say, until
from tests.hostile.test_frames import Http2, framed
from tests.patience import PATIENCE_S
from tests.stalled import StalledClient

ALICE, BOB = Caller("alice"), Caller("bob")
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
REQUEST = make_request(output={"token_ids": True})
RECEIVED = MAX_HELD_BYTES // FrontendConfig.max_request_bytes // 2
"""Messages of a tenant that are received at once while no other tenant has any."""


def test_a_tenant_has_a_share_of_the_slots():
    """One tenant's calls once locked out all others."""
    limits = ConcurrencyLimits(4, 0)
    for slot in (limits.call, limits.stream):
        with slot(ALICE), slot(ALICE):
            with pytest.raises(FrontendFull), slot(ALICE):
                pass
            with slot(BOB), slot(BOB), pytest.raises(FrontendFull), slot(ANONYMOUS):
                pass
        with slot(ALICE), slot(None), slot(None), pytest.raises(FrontendFull), slot(None):
            pass
    with limits.call(ANONYMOUS), limits.call(ANONYMOUS), limits.call(ANONYMOUS), limits.call(ANONYMOUS):
        assert limits.num_calls == 4
    assert limits.num_calls == 0 and limits.refused == {"calls": 2 + 1, "streams": 2 + 1}


async def test_a_unary_response_that_is_not_read_is_given_up(checkpoint, model):
    async with run_service(checkpoint, say([65]), model=model, write_timeout=0.2) as service:
        with StalledClient(f"127.0.0.1:{service.port}") as client:
            stream = client.call(REQUEST, "GenerateUnary")
            await until(lambda: len(service.frontend.write_timeouts) == 1)
            await until(lambda: len(service.frontend.write_timeouts) == 0)
            _, trailers = await asyncio.to_thread(client.read_on, stream)
            assert trailers["grpc-status"] == str(grpc.StatusCode.ABORTED.value[0])
            await until(lambda: service.frontend.limits.num_calls == 0)


@pytest.mark.parametrize(
    "path", ["/pagewire.v1.ModelService/ListModels", "/inference.GRPCInferenceService/ModelInfer"]
)
async def test_an_unread_answer_of_any_unary_method_is_given_up(checkpoint, model, path: str):
    """Those of methods that were not in a list were held as long as their clients liked, with their slots."""
    settings = {"write_timeout": 0.2, "open_inference": True}
    prompt = oip.ModelInferRequest(model_name="fake")
    prompt.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"hi")
    message = prompt.SerializeToString() if path.endswith("ModelInfer") else b""
    async with run_service(checkpoint, say([65]), model=model, **settings) as service:
        limits, timeouts = service.frontend.limits, service.frontend.write_timeouts
        with Http2(f"127.0.0.1:{service.port}") as raw:
            raw.state.update_settings({4: 0})  # INITIAL_WINDOW_SIZE
            raw.call(framed(message), _path=path)
            await until(lambda: len(timeouts) == 1)
            assert limits.num_calls + limits._controls.num_held == 1
            await until(lambda: len(timeouts) == 0)
        await until(lambda: limits.num_calls + limits._controls.num_held == 0)


async def test_an_archive_that_is_not_read_holds_a_slot_and_is_given_up(checkpoint, model):
    async with run_service(checkpoint, model=model, write_timeout=0.2) as service:
        limits = service.frontend.limits
        with Http2(f"127.0.0.1:{service.port}") as raw:
            raw.state.update_settings({4: 0})  # INITIAL_WINDOW_SIZE
            raw.call(framed(b""), _path="/pagewire.v1.TokenizerService/GetTokenizer")
            await until(lambda: len(service.frontend.write_timeouts) == 1)
            assert limits.num_calls == 1
            await until(lambda: len(service.frontend.write_timeouts) == 0)
        await until(lambda: limits.num_calls == 0)


async def test_half_a_message_holds_a_slot_until_its_time_is_up(checkpoint, model, monkeypatch):
    monkeypatch.setattr("frontend.grpc_services.RECEIVE_TIMEOUT_S", 2.0)  # all three arrive within it
    async with run_service(checkpoint, model=model) as service:
        frontend = service.frontend
        with Http2(f"127.0.0.1:{service.port}") as client:
            for _ in range(3):
                client.call(framed(bytes(1000), length=1 << 20), end=False)
            await until(lambda: frontend.limits.num_calls == 3)
            await until(lambda: frontend.limits.num_calls == 0)
            assert frontend.counters.abandoned == 3


async def test_resets_are_counted_and_leave_nothing(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        frontend = service.frontend
        with Http2(f"127.0.0.1:{service.port}") as client:
            for _ in range(200):
                client.state.reset_stream(client.call(b"", end=False))
                client.flush()
            await until(lambda: frontend.counters.abandoned > 0)
        model_stub = service.models  # on another connection: an answer proves that the frontend serves on
        assert (await model_stub.ListModels(model_pb2.ListModelsRequest())).models
        await until(lambda: frontend.limits.num_calls == 0 and not frontend.limits._calls._held_by)


def wait_until_read(client: Http2) -> None:
    """Returns when the server has read all that the client has sent."""
    client.state.ping(b"all read")
    client.flush()
    while not any(
        isinstance(event, h2.events.PingAckReceived)
        for event in client.state.receive_data(client.socket.recv(65536))
    ):
        client.flush()


def ends_of(client: Http2, calls: set[int]) -> list[str]:
    """Returns the grpc-status of each call, or "reset"."""
    ends = {}
    while calls - set(ends):
        for event in client.state.receive_data(client.socket.recv(65536)):
            if isinstance(event, h2.events.StreamReset):
                ends[event.stream_id] = "reset"
            for name, text in getattr(event, "headers", None) or ():
                if name == "grpc-status":
                    ends[event.stream_id] = text
        client.flush()
    return list(ends.values())


async def test_calls_of_a_stranger_cancel_no_other_call(checkpoint, model, tmp_path):
    """While more than 1,000 calls waited to be taken, gRPC cancelled some at random, of all clients."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + entry_line(digest_of("alice's"), "alice", {}))
    async with run_service(checkpoint, model=model, auth_file=str(tokens)) as service:
        address = f"127.0.0.1:{service.port}"
        with Http2(address) as alice, ExitStack() as connections:
            # This holds the event loop, which takes no call meanwhile.
            path = "/pagewire.v1.ModelService/ListModels"  # gRPC queues calls by method
            for stranger in [connections.enter_context(Http2(address)) for _ in range(5)]:
                for _ in range(1000):
                    stranger.call(framed(b""), _path=path)
                wait_until_read(stranger)
            calls = {alice.call(framed(b""), _path=path, authorization="Bearer alice's") for _ in range(30)}
            wait_until_read(alice)
            assert await asyncio.to_thread(ends_of, alice, calls) == ["0"] * 30


async def test_watchers_of_health_have_a_bound(checkpoint, model, tmp_path):
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + entry_line(digest_of("alice's"), "alice", {}))
    settings = {"auth_file": str(tokens), "max_concurrent_requests": 4}
    async with run_service(checkpoint, model=model, **settings) as service:
        stub = health_pb2_grpc.HealthStub(service.channel)
        watching = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for call in watching:
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        third = stub.Watch(health_pb2.HealthCheckRequest())
        assert await third.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status
        for call in watching:
            call.cancel()


def half_a_message(client: Http2, path: str) -> None:
    """Begins a call with a message that does not arrive."""
    client.call(framed(bytes(10), length=1 << 20), end=False, _path=path)


async def test_halves_of_health_checks_take_no_answer_from_the_others(
    checkpoint, model, tmp_path, monkeypatch
):
    """As many as there are slots, without a token, once stopped all health checks for 30 seconds."""
    monkeypatch.setattr("frontend.grpc_services.RECEIVE_TIMEOUT_S", 2 * PATIENCE_S)
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens: []")
    async with run_service(checkpoint, model=model, auth_file=str(tokens)) as service:
        slots = service.frontend.parts.receiving_slots
        with Http2(f"127.0.0.1:{service.port}") as client:
            for _ in range(RECEIVED):
                half_a_message(client, "/grpc.health.v1.Health/Check")
            await until(lambda: not slots.has_room(""))
            stub = health_pb2_grpc.HealthStub(service.channel)
            for _ in range(3):
                answer = await stub.Check(health_pb2.HealthCheckRequest(service="unread"), timeout=PATIENCE_S)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            watching = stub.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
            watching.cancel()
        await until(lambda: slots.has_room(""))
        with pytest.raises(grpc.aio.AioRpcError):  # read, it is not known
            await stub.Check(health_pb2.HealthCheckRequest(service="unread"))


async def test_large_messages_wait_with_their_clients(checkpoint, model, tmp_path):
    """They hold their slots until they are decoded: so few are in memory, and none is refused for that."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + entry_line(digest_of("a"), "a", {}))
    settings = {"auth_file": str(tokens), "max_request_bytes": 4 << 20}
    async with run_service(checkpoint, model=model, **settings) as service:
        frontend = service.frontend
        # A large message of another tenant is decoded.
        await frontend.parts.large_messages._turns.begin("other")
        large = make_request(continuation={"sequences": [{"token_ids": [7] * 1_000_000}]})
        metadata = (("authorization", "Bearer a"),)
        calls = [service.generation.GenerateUnary(large, metadata=metadata) for _ in range(40)]
        most = MAX_RECEIVED_BYTES // large.ByteSize()
        await until(lambda: frontend.limits.num_bytes == most * large.ByteSize())
        assert frontend.parts.receiving_slots.num_held("a") == most < len(calls)
        frontend.parts.large_messages._turns.end("other")
        codes = {await call.code() for call in calls}
        assert codes == {grpc.StatusCode.INVALID_ARGUMENT}
        await until(lambda: not frontend.parts.receiving_slots.num_held("a"))


async def test_halves_behind_small_messages_have_a_bound_in_bytes(checkpoint, model, tmp_path):
    """Messages were counted by the sizes of those before, so 64 halves of 16 MiB came in."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + "\n".join(entry_line(digest_of(name), name, {}) for name in ("a", "b")))
    path, num_small = "/pagewire.v1.TokenizerService/Detokenize", 20
    async with run_service(checkpoint, model=model, auth_file=str(tokens)) as service:
        slots, counters = service.frontend.parts.receiving_slots, service.frontend.counters
        with Http2(f"127.0.0.1:{service.port}") as client:

            def halves(count: int) -> None:
                for _ in range(count):
                    half = framed(bytes(100), length=FrontendConfig.max_request_bytes)
                    client.call(half, end=False, _path=path, authorization="Bearer a")

            halves(1)  # what has come is remembered while something is on its way
            await until(lambda: slots.num_held("a") == 1)
            for _ in range(num_small):
                small = client.call(framed(b""), _path=path, authorization="Bearer a")
                assert await asyncio.to_thread(client.status, small)
            halves(63)
            await until(lambda: not slots.has_room("a"))
            other = client.call(framed(b""), _path=path, authorization="Bearer b")
            assert await asyncio.to_thread(client.status, other), "another tenant is served"
            assert slots.num_held("a") * FrontendConfig.max_request_bytes <= MAX_HELD_BYTES // 2
            assert slots.num_held("a") == RECEIVED and not counters.abandoned
        await until(lambda: not slots.num_held("a"))


async def test_a_tenant_has_a_bounded_number_of_streams_of_requests(checkpoint, model, tmp_path):
    """Each may hold most of a message of 16 MiB for as long as it likes."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + "\n".join(entry_line(digest_of(name), name, {}) for name in ("a", "b")))
    async with run_service(checkpoint, model=model, auth_file=str(tokens), reflection=True) as service:
        limits = service.frontend.limits
        reflection = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        paths = ("pagewire.v1.GenerationService/GenerateMultiplexed", reflection)
        with Http2(f"127.0.0.1:{service.port}") as client:
            for number in range(MAX_REQUEST_STREAMS):
                client.call(b"", end=False, _path=f"/{paths[number % 2]}", authorization="Bearer a")
            await until(lambda: limits._request_streams.num_held == MAX_REQUEST_STREAMS)
            for path in paths:
                stream = client.call(b"", end=False, _path=f"/{path}", authorization="Bearer a")
                assert await asyncio.to_thread(client.status, stream) == str(FULL)
            client.call(b"", end=False, _path=f"/{paths[0]}", authorization="Bearer b")
            await until(lambda: limits._request_streams.num_held == MAX_REQUEST_STREAMS + 1)
        await until(lambda: limits._request_streams.num_held == 0)
        assert limits.refused["request_streams"] == 2


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def post(port: int, token: str, body: bytes, length: int) -> Connection:
    """Sends a body, or the beginning of one, to the OpenAI port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def test_a_tenants_bodies_arrive_a_few_at_a_time(checkpoint, model, tmp_path):
    """Each of 2,048 may be most of 16 MiB. They share the slots of gRPC's messages."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + "\n".join(entry_line(digest_of(name), name, {}) for name in ("a", "b")))
    settings = {"auth_file": str(tokens), "openai_port": 0}
    async with run_service(checkpoint, model=model, **settings) as service:
        frontend = service.frontend
        port = frontend._ports[-1]
        body = b'{"prompt": "hi"}'
        halves = [await post(port, "a", body[:-1], len(body)) for _ in range(RECEIVED)]
        await until(lambda: not frontend.parts.receiving_slots.has_room("a"))
        waiting, served = [await post(port, name, body, len(body)) for name in ("a", "b")]
        assert b" 200 " in await served[0].readline()
        assert frontend.parts.receiving_slots.num_held("a") == RECEIVED
        halves[0][1].write(body[-1:])
        for reader, _ in (halves[0], waiting):
            assert b" 200 " in await reader.readline()
        for _, writer in (*halves, waiting, served):
            writer.close()
        await until(lambda: not frontend.parts.receiving_slots.num_held("a"))


async def test_large_bodies_are_parsed_in_turns(checkpoint, model):
    """They count as bytes that are tokenized, and the loop goes on between two of them."""
    settings = {"openai_port": 0, "max_tokenizing_bytes": 300_000}
    async with run_service(checkpoint, model=model, **settings) as service:
        frontend = service.frontend
        body = b'{"prompt": "hi"' + b" " * 200_000 + b"}"
        await frontend.parts.large_messages._turns.begin("other")  # another one is being parsed
        first = await post(frontend._ports[-1], "", body, len(body))
        await until(lambda: frontend.limits.num_bytes == len(body))
        second = await post(frontend._ports[-1], "", body, len(body))
        assert b" 429 " in await second[0].readline()
        frontend.parts.large_messages._turns.end("other")
        assert b" 200 " in await first[0].readline()
        await until(lambda: not frontend.limits.num_bytes)
        for _, writer in (first, second):
            writer.close()
