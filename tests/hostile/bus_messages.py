"""What a hostile process of ours would send over the internal bus: frame sets, requests, outputs."""

import os
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import DecodeError, Message

from pagewire.internal.v1.engine_pb2 import AddRequest, FrontendMessage
from pagewire.ipc.columns import pack_u32
from pagewire.ipc.transport import pack
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.engine_core.fakes import VOCAB, add_request
from tests.hostile.messages import any_message, damage

ODD_NUMBERS = (0, 1, 2, 3, 5, 63, 64, 996, 997, 2**31 - 1, 2**31, 2**32 - 1)
ODD_FLOATS = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0, 1e308, 1e-320, 0.5)


class Bomb:
    """A pickle of it touches a file when it is opened."""

    def __init__(self, marker: str) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (self._marker,)


def bombs(marker: str) -> list[bytes]:
    """Pickles that leave a folder behind, in every protocol, and in what other buses would open."""
    plain = [pickle.dumps(Bomb(marker), protocol) for protocol in range(6)]
    nested = [pickle.dumps({"a": [Bomb(marker)]}, protocol) for protocol in range(6)]
    ext = [b"\xc7" + bytes((min(len(each), 255), kind)) + each for each in plain for kind in (1, 2, 3)]
    array = b"\x93NUMPY\x01\x00\x46\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n" + plain[2]
    zipped = b"PK\x03\x04archive/data.pkl" + plain[2]
    everything = [*plain, *nested, *ext, array, zipped]
    return everything + [b"\x01" + each for each in everything]


def column(draw: random.Random) -> bytes:
    """A column of odd numbers; now and then one whose length does not fit."""
    values = [draw.choice(ODD_NUMBERS) for _ in range(draw.choice((0, 1, 2, 3, 8, 70)))]
    return pack_u32(values) + b"x" * draw.choice((0, 0, 0, 1, 3))


def frame_sets(kind: type[Message], draw: random.Random, marker: str) -> Iterator[list[bytes]]:
    """Without end: what a peer may put on the wire instead of one frame with one message of this kind."""
    pickles = bombs(marker)
    while True:
        frame = pack(any_message(kind.DESCRIPTOR, draw))
        yield draw.choice(
            (
                [frame],
                [damage(frame, draw)],
                [frame[:-1], frame],
                [b"", frame],
                [frame, b""],
                [b""],
                [b""] * draw.randrange(1, 40),
                [bytes((draw.randrange(256),)) + frame[1:]],
                [frame[: draw.randrange(len(frame))]],
                [frame + draw.randbytes(draw.randrange(1, 300))],
                [draw.randbytes(draw.randrange(200))],
                [draw.choice(pickles)],
                [b"\x01" + b"\xff" * draw.randrange(1, 30)],
                [b"\x01\xfa\xff\xff\xff\x0f" + frame],
                [b"GET / HTTP/1.1\r\n\r\n"],
            )
        )


def hostile_request(handle: int, draw: random.Random) -> AddRequest:
    """A request as frontends send them, with a few fields changed."""
    prompt = [draw.randrange(VOCAB) for _ in range(draw.choice((1, 4, 5, 16, 40)))]
    message = add_request(handle, prompt, n=draw.choice((1, 1, 2, 8)), max_tokens=draw.choice((1, 3, 9)))
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        draw.choice(MUTATIONS)(message, draw)
    return message


def frontend_message(draw: random.Random, handles: range) -> FrontendMessage:
    """Any message that the core may find in its inbox. handles: of honest requests, to meddle with."""
    kind = draw.randrange(8)
    if kind < 4:
        return FrontendMessage(add_request=hostile_request(draw.randrange(1000, 1 << 40), draw))
    if kind == 4:  # handles of others, and its own ones twice
        return FrontendMessage(add_request=hostile_request(draw.choice(handles), draw))
    message = FrontendMessage()
    if kind == 5:
        message.abort.handle = draw.choice(handles)
        message.abort.indexes.extend(draw.choices(ODD_NUMBERS, k=draw.randrange(4)))
        return message
    if kind == 6:
        message.add_request.CopyFrom(hostile_request(draw.randrange(1000, 1 << 40), draw))
        try:
            message = FrontendMessage.FromString(damage(message.SerializeToString(), draw))
        except DecodeError:
            return FrontendMessage(hello={})
    else:
        message.CopyFrom(any_message(FrontendMessage.DESCRIPTOR, draw))
    return message if message.WhichOneof("message") else FrontendMessage(hello={})


LENGTHS = (0, 62, 63, 64, 100_000)
Mutation = Callable[[Any, random.Random], object]


def _sampling(message: Any, draw: random.Random) -> None:
    names = ("temperature", "top_p", "min_p", "typical_p", "frequency_penalty", "repetition_penalty")
    setattr(message.sampling, draw.choice(names), draw.choice(ODD_FLOATS))


def _beams(message: Any, draw: random.Random) -> None:
    search = message.sampling.beam_search
    search.CopyFrom(any_message(search.DESCRIPTOR, draw))


def _options(message: Any, draw: random.Random) -> None:
    options = any_message(LogprobOptions.DESCRIPTOR, draw)
    getattr(message, draw.choice(("logprobs", "prompt_logprobs"))).CopyFrom(options)
    message.prompt_logprobs_start = draw.choice(ODD_NUMBERS)


def _delivered(message: Any, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 2, 9))):
        tokens = draw.choice((column(draw), pack_u32([draw.randrange(VOCAB)] * draw.randrange(9))))
        message.delivered.add(index=draw.choice((0, 0, 1, 7, 2**32 - 1)), token_ids=tokens)


def _time(message: Any, draw: random.Random) -> None:
    span = draw.choice((message.deadline, message.stopping.time_limit))
    span.seconds = draw.choice((-(2**63), -1, 0, 1, 2**63 - 1))
    span.nanos = draw.choice((-(2**31), 0, 1, 2**31 - 1))


def _terms(message: Any, draw: random.Random) -> None:
    message.tenant = draw.choice(("", "a", "b", "x" * 300))
    message.tenant_terms.weight = draw.choice((*ODD_FLOATS, 1.0, 2.5))
    message.tenant_terms.max_requests = draw.choice((0, 1, 2**32 - 1))
    message.tenant_terms.max_tokens_per_minute = draw.choice((0, 1, 2**64 - 1))


def _trace(message: Any, draw: random.Random) -> None:
    message.traceparent = draw.choice(("00-", "x" * 5000, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\x00"))
    message.tracestate = draw.choice(("", ",=,", "k=v" * 1000))


def _names(message: Any, draw: random.Random) -> None:
    message.request_id = draw.choice(("", "x" * 2000, "\n\x1b[2J", "taken"))
    message.group = draw.choice(("", "g", "x" * 2000))
    message.age_us = draw.choice((0, 1, 2**64 - 1))
    message.cache_salt = draw.choice(("", "s" * 10_000))


def _stopping(message: Any, draw: random.Random) -> None:
    stopping = message.stopping
    stopping.max_tokens, stopping.min_tokens = draw.choice(ODD_NUMBERS), draw.choice(ODD_NUMBERS)
    stopping.stop_token_ids.extend(draw.choices(ODD_NUMBERS, k=draw.randrange(4)))


def _choices(message: Any, draw: random.Random) -> None:
    sampling = message.sampling
    sampling.allowed_token_ids.extend(draw.choices(ODD_NUMBERS, k=draw.randrange(3)))
    sampling.bad_token_ids.extend(draw.choices(ODD_NUMBERS, k=draw.randrange(3)))
    sampling.logit_bias[draw.choice(ODD_NUMBERS)] = draw.choice(ODD_FLOATS)
    message.bad_words.add(ids=draw.choices(ODD_NUMBERS, k=draw.randrange(3)))


MUTATIONS: tuple[Mutation, ...] = (
    _sampling,
    _beams,
    _options,
    _delivered,
    _time,
    _terms,
    _trace,
    _names,
    _stopping,
    _choices,
    lambda message, draw: setattr(message.sampling, "n", draw.choice(ODD_NUMBERS)),
    lambda message, draw: setattr(message.sampling, "best_of", draw.choice(ODD_NUMBERS)),
    lambda message, draw: message.sampling.ClearField(
        draw.choice(("temperature", "top_p", "top_k", "seed", "n"))
    ),
    lambda message, draw: setattr(message, "prompt_token_ids", column(draw)),
    lambda message, draw: setattr(
        message, "prompt_token_ids", bytes(4 * draw.choice((0, 62, 63, 64, 100_000)))
    ),
    lambda message, draw: message.ended_indexes.extend(draw.choices((0, 1, 2, 2**32 - 1), k=3)),
    lambda message, draw: setattr(message, "priority", draw.choice((-(2**31), -1000, 1000, 2**31 - 1))),
    lambda message, draw: setattr(message, "handle", draw.choice((0, 1, 2**64 - 1))),
    lambda message, draw: setattr(message, "again", True),
)
