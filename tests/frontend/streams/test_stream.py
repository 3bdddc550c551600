"""The slot and its sequences: whatever arrives in whatever portions, and however rarely the client
takes a message, joined messages say the same."""

import asyncio
import random
from array import array

import pytest

import frontend.streams.stream as stream_module
from frontend.engine.logprobs import Scores
from frontend.errors import EngineDead, InternalError, ProtocolError
from frontend.streams.sequence import OutputFields, Sequence
from frontend.streams.stream import DeliveryMode, Header, Stream
from frontend.telemetry.timings import RequestTimings
from frontend.text.stop_strings import StopMatcher, StopStrings
from frontend.text.tokenizer import Tokenizer
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import (
    END,
    byte_level_tokenizer,
    encode,
    finishes_of,
    text_of,
    tokens_of,
)
from tests.frontend.text.test_detokenizer import KINDS, random_sequence
from tests.frontend.text.test_stop_strings import earliest

EOS = generation_pb2.FINISH_REASON_EOS
STOP = generation_pb2.FINISH_REASON_STOP
MAX_TOKENS = generation_pb2.FINISH_REASON_MAX_TOKENS
ABORTED = generation_pb2.FINISH_REASON_ABORTED

RAW = byte_level_tokenizer()
TOKENIZER = Tokenizer(RAW)


def make_stream(
    n: int = 1,
    *,
    tokenizer: Tokenizer = TOKENIZER,
    stops: tuple[str, ...] = (),
    skip: bool = True,
    prompt: tuple[int, ...] = (),
    delivery: DeliveryMode = DeliveryMode(),  # noqa: B008 - frozen
    **wanted,
) -> Stream:
    options = OutputFields(**wanted)
    compiled = StopStrings(stops, include=options.include_stop) if stops else None
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    detokenizer.prime(prompt)
    sequences = [
        Sequence(
            index,
            options,
            detokenizer.copy() if options.text or stops else None,
            StopMatcher(compiled) if compiled else None,
        )
        for index in range(n)
    ]
    return Stream(Header("id", "fake", 7, 3), delivery, sequences, RequestTimings())


def push(stream: Stream, position: int, tokens, reason: int = 0, matched: int = 0, index: int = 0) -> bool:
    return stream.push(index, position, array("I", tokens), reason, matched, 1)


def copy_of(message: generation_pb2.GenerateResponse) -> generation_pb2.GenerateResponse:
    """A stream uses its message again."""
    copied = generation_pb2.GenerateResponse()
    copied.CopyFrom(message)
    return copied


async def ready_messages(stream: Stream) -> list[generation_pb2.GenerateResponse]:
    """The messages that can be taken without waiting; after the end, None is one of them."""
    messages = []
    while True:
        taking = asyncio.ensure_future(stream.take())
        await asyncio.sleep(0)
        if not taking.done():
            taking.cancel()
            return messages
        message = taking.result()
        if message is None:
            return messages
        messages.append(copy_of(message))


async def run(stream: Stream, ids: list[int], rng: random.Random, reason: int, matched: int = 0):
    """Pushes ids in random portions, and takes messages at random moments."""
    messages, start = [], 0
    while start < len(ids) and not stream.ended:
        end = min(start + rng.randrange(1, 4), len(ids))
        last = end == len(ids)
        push(stream, start, ids[start:end], reason if last else 0, matched if last else 0)
        start = end
        if rng.random() < 0.5:
            messages += await ready_messages(stream)
    return messages + await ready_messages(stream)


@pytest.fixture(scope="module", params=["byte-level", "llama", "metaspace"])
def kind(request):
    raw = KINDS[request.param][0]()
    return raw, Tokenizer(raw)


@pytest.mark.parametrize("mode", ["delta", "cumulative", "final"])
async def test_joined_messages_equal_the_decode_up_to_the_first_stop(kind, mode):
    """The law for whole streams: 400 random sequences per mode and tokenizer, half with stop strings."""
    raw, tokenizer = kind
    rng = random.Random(f"{mode}")
    for _ in range(400):
        ids = random_sequence(rng, raw)
        skip, include = rng.random() < 0.5, rng.random() < 0.5
        stops = tuple(
            rng.choices(["é", "你", "hi ", "\n", "\ufffd\ufffd", "a", "i t", ">"], k=rng.randrange(3))
        )
        stream = make_stream(
            tokenizer=tokenizer,
            stops=stops,
            skip=skip,
            include_stop=include,
            token_ids=True,
            cumulative=mode == "cumulative",
            delivery=DeliveryMode(final_only=mode == "final"),
        )
        messages = await run(stream, ids, rng, MAX_TOKENS)
        whole = raw.decode(ids, skip_special_tokens=skip)
        match = earliest(whole, list(stops))
        last = messages[-1].sequences[0]
        assert len(finishes_of(messages)) == 1 and last.HasField("finish")
        if mode == "delta":
            text, tokens = text_of(messages), tokens_of(messages)
            held = 0
            for message in messages:
                assert message.sequences[0].position == held
                held += message.sequences[0].token_count
        else:
            text, tokens = last.text, list(last.token_ids)
            assert last.position == 0 and last.token_count == len(tokens)
            assert mode == "cumulative" or len(messages) == 1
        if match is None:
            assert (text, tokens) == (whole, ids)
            assert last.finish.reason == MAX_TOKENS
        else:
            stop, start, end = match
            assert text == whole[: end if include else start]
            assert tokens == ids[: len(tokens)]
            assert (last.finish.reason, last.finish.stop) == (STOP, stop)
        assert messages[-1].usage.completion_tokens == len(tokens)


async def test_tokens_up_to_the_one_that_completes_a_stop_string():
    stream = make_stream(stops=("lo w",), token_ids=True)
    assert push(stream, 0, encode("hello world"))  # the core has to be told
    (message,) = await ready_messages(stream)
    assert message.sequences[0].text == "hel"
    assert list(message.sequences[0].token_ids) == encode("hello w")
    assert message.sequences[0].finish.stop == "lo w"
    assert not push(stream, 11, encode("!!"))  # late tokens count for nothing
    assert not push(stream, 99, [], ABORTED)
    assert await stream.take() is None


async def test_a_stop_string_in_the_last_token_needs_no_abort():
    stream = make_stream(stops=("b",))
    assert not push(stream, 0, encode("ab"), MAX_TOKENS)
    (message,) = await ready_messages(stream)
    assert message.sequences[0].finish.reason == STOP and message.sequences[0].text == "a"


async def test_held_back_text_may_hold_a_stop_string_at_the_end():
    """What ends incomplete becomes U+FFFD, and that may be what the client waits for."""
    stream = make_stream(stops=("\ufffd",))
    push(stream, 0, encode("a\u00e9"[:1]) + encode(b"\xe4"), MAX_TOKENS)
    (message,) = await ready_messages(stream)
    assert message.sequences[0].finish.stop == "\ufffd" and message.sequences[0].text == "a"


@pytest.mark.parametrize("stops", [(), ("zzz",)])
@pytest.mark.parametrize(
    ("skip", "include", "text"),
    [(True, False, "ok"), (False, False, "ok"), (True, True, "ok"), (False, True, "ok<|end|>")],
)
async def test_the_text_of_eos(stops, skip, include, text):
    """Left out unless include_stop; and then skip_special_tokens still applies."""
    stream = make_stream(stops=stops, skip=skip, include_stop=include, token_ids=True)
    push(stream, 0, encode("ok"))
    push(stream, 2, [END], EOS, END)
    (message,) = await ready_messages(stream)
    assert message.sequences[0].text == text
    assert list(message.sequences[0].token_ids) == [*encode("ok"), END]
    assert message.sequences[0].finish.token_id == END


@pytest.mark.parametrize("stops", [(), ("zzz",)])
@pytest.mark.parametrize(("include", "text"), [(False, "o"), (True, "ok")])
async def test_the_text_of_a_stop_token(stops, include, text):
    stream = make_stream(stops=stops, include_stop=include)
    (k,) = encode("k")
    push(stream, 0, encode("ok"), STOP, k)
    (message,) = await ready_messages(stream)
    assert message.sequences[0].text == text
    assert message.sequences[0].finish.reason == STOP and message.sequences[0].finish.token_id == k


async def test_min_tokens_postpones_stop_strings():
    stream = make_stream(stops=("a",), min_tokens=3)
    push(stream, 0, encode("aabab"))
    (message,) = await ready_messages(stream)
    assert message.sequences[0].text == "aab" and message.sequences[0].token_count == 4


async def test_no_empty_messages_where_only_text_is_wanted():
    """Half a character is nothing to tell; its tokens are counted with the next message."""
    stream = make_stream()
    first, *rest = encode("🙂")
    push(stream, 0, encode("a"))
    assert len(await ready_messages(stream)) == 1
    push(stream, 1, [first])
    assert await ready_messages(stream) == []
    push(stream, 2, rest)
    (message,) = await ready_messages(stream)
    assert message.sequences[0].text == "🙂"
    assert (message.sequences[0].position, message.sequences[0].token_count) == (1, 4)


async def test_tokens_without_text_are_sent_when_tokens_are_requested():
    stream = make_stream(token_ids=True)
    push(stream, 0, encode("🙂")[:1])
    (message,) = await ready_messages(stream)
    assert message.sequences[0].text == "" and message.sequences[0].token_count == 1


async def test_without_text_messages_still_count():
    stream = make_stream(text=False)
    push(stream, 0, encode("abc"))
    (message,) = await ready_messages(stream)
    assert message.sequences[0].text == "" and message.sequences[0].token_count == 3


async def test_stop_strings_work_without_text():
    stream = make_stream(text=False, stops=("b",))
    assert push(stream, 0, encode("abc"))
    (message,) = await ready_messages(stream)
    assert message.sequences[0].finish.stop == "b" and message.sequences[0].text == ""
    assert message.sequences[0].token_count == 2


async def test_everything_that_arrived_is_one_message():
    """A slow client gets larger messages: 1,000 pushes wait in one slot."""
    stream = make_stream(token_ids=True)
    for position in range(1000):
        push(stream, position, encode("x"))
    (message,) = await ready_messages(stream)
    assert message.sequences[0].text == "x" * 1000 and message.sequences[0].token_count == 1000


async def test_sequences_of_a_request_share_messages():
    stream = make_stream(3, token_ids=True)
    push(stream, 0, encode("a"), index=0)
    push(stream, 0, encode("b"), index=2)
    (message,) = await ready_messages(stream)
    assert [(output.index, output.text) for output in message.sequences] == [(0, "a"), (2, "b")]
    push(stream, 1, encode("c"), MAX_TOKENS, index=2)
    push(stream, 0, encode("d"), MAX_TOKENS, index=1)
    (message,) = await ready_messages(stream)
    assert [output.finish.reason for output in message.sequences] == [MAX_TOKENS, MAX_TOKENS]
    assert not message.HasField("usage") and not stream.ended
    push(stream, 1, [END], EOS, END, index=0)
    (message,) = await ready_messages(stream)
    assert message.usage.completion_tokens == 5 and message.usage.prompt_tokens == 3
    assert await stream.take() is None


async def test_only_the_first_message_introduces_the_request():
    stream = make_stream(delivery=DeliveryMode(continuous_usage=True))
    stream.started(1500, 2)
    push(stream, 0, encode("a"))
    (first,) = await ready_messages(stream)
    push(stream, 1, encode("b"))
    (second,) = await ready_messages(stream)
    assert (first.request_id, first.model, first.seed) == ("id", "fake", 7)
    assert (first.prompt.tokens, first.prompt.cached_tokens) == (3, 2)
    assert not second.request_id and not second.HasField("prompt") and not second.seed
    assert [message.usage.completion_tokens for message in (first, second)] == [1, 2]
    assert second.usage.cached_prompt_tokens == 2


async def test_stream_interval():
    """The first message comes at once, then every fourth token; an end does not wait."""
    stream = make_stream(delivery=DeliveryMode(interval=4))
    counts = []
    for position in range(10):
        push(stream, position, encode("x"), MAX_TOKENS if position == 9 else 0)
        counts += [message.sequences[0].token_count for message in await ready_messages(stream)]
    assert counts == [1, 4, 4, 1]


async def test_an_error_follows_what_was_not_delivered():
    """A client that wants to continue elsewhere should hold all that there is."""
    stream = make_stream()
    push(stream, 0, encode("ab"))
    stream.fail(EngineDead())
    assert (await stream.take()).sequences[0].text == "ab"
    with pytest.raises(EngineDead):
        await stream.take()


async def test_an_error_spoils_a_response_that_would_be_one_message():
    stream = make_stream(delivery=DeliveryMode(final_only=True))
    push(stream, 0, encode("ab"))
    stream.fail(InternalError())
    with pytest.raises(InternalError):
        await stream.take()


async def test_an_error_wakes_the_handler():
    stream = make_stream()
    taking = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0)
    stream.fail(EngineDead())
    with pytest.raises(EngineDead):
        await taking


@pytest.mark.parametrize(("index", "position"), [(0, 1), (0, 3), (1, 0)])
async def test_outputs_that_do_not_continue_what_is_held(index, position):
    stream = make_stream()
    push(stream, 0, encode("ab"))
    with pytest.raises(ProtocolError):
        push(stream, position, encode("c"), index=index)


async def test_abort_without_the_core():
    stream = make_stream(2)
    stream.abort()
    (message,) = await ready_messages(stream)
    assert [output.finish.reason for output in message.sequences] == [ABORTED, ABORTED]
    assert stream.ended


async def test_token_bytes():
    stream = make_stream(token_bytes=TOKENIZER.token_bytes)
    push(stream, 0, [*encode("é"), END], EOS, END)
    (message,) = await ready_messages(stream)
    assert list(message.sequences[0].token_bytes) == [b"\xc3", b"\xa9", b"<|end|>"]


async def test_what_no_message_takes_is_sent_in_several(monkeypatch):
    """A slow reader of many sequences with many candidates: as many at once as fit, one at least."""
    monkeypatch.setattr(stream_module, "MAX_OUTPUT_VALUES", 10)
    stream = make_stream(3, logprobs=True)
    for index, tokens in enumerate(([65, 66], [65] * 12, [67] * 6)):
        stream.push(index, 0, array("I", tokens), MAX_TOKENS, 0, 1, scores=Scores.unknown(len(tokens)))
    messages = []
    while (message := await stream.take()) is not None:
        messages.append(generation_pb2.GenerateResponse.FromString(message.SerializeToString()))
    assert [[each.index for each in message.sequences] for message in messages] == [[0], [1], [2]]
    assert [message.HasField("usage") for message in messages] == [False, False, True]
    assert messages[-1].usage.completion_tokens == 20 and messages[0].seed == 7
