"""GenerationService over real gRPC, with an engine that does what the test says."""

import asyncio
import logging
from datetime import timedelta

import grpc
import pytest
from google.rpc import code_pb2

from frontend.rpc import error_mapping as guard
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import (
    BEGIN,
    END,
    Output,
    byte_level_tokenizer,
    details_of,
    encode,
    finishes_of,
    in_time,
    make_request,
    run_service,
    say,
    text_of,
    tokens_of,
)
from tests.patience import soon

RAW = byte_level_tokenizer()
EOS = generation_pb2.FINISH_REASON_EOS
STOP = generation_pb2.FINISH_REASON_STOP
MAX_TOKENS = generation_pb2.FINISH_REASON_MAX_TOKENS
ABORTED = generation_pb2.FINISH_REASON_ABORTED
HELLO = say(encode("he"), encode("llo "), encode("é")[:1], encode("é")[1:], encode("!"))


async def next_of(queue: asyncio.Queue):
    return await soon(queue.get())


async def failure_of(call) -> grpc.aio.AioRpcError:
    """The error that a call, or the reading of a stream, ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    return caught.value


# What comes out.


@pytest.mark.parametrize("mode", ["MODE_UNSPECIFIED", "MODE_DELTA", "MODE_CUMULATIVE", "MODE_FINAL"])
async def test_modes(checkpoint, model, mode):
    async with run_service(checkpoint, HELLO, model=model) as service:
        messages = await service.generate(output={"mode": mode, "token_ids": True})
        last = messages[-1].sequences[0]
        assert last.finish.reason == MAX_TOKENS
        assert messages[-1].usage.completion_tokens == 9
        if mode in ("MODE_CUMULATIVE", "MODE_FINAL"):
            assert last.text == "hello é!" and list(last.token_ids) == encode("hello é!")
            assert (last.position, last.token_count) == (0, 9)
            assert mode != "MODE_FINAL" or len(messages) == 1
        else:
            assert text_of(messages) == "hello é!" and tokens_of(messages) == encode("hello é!")


async def test_a_unary_response_is_the_sum_of_the_stream(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        fields = {
            "output": {"token_ids": True, "prompt_token_ids": True},
            "sampling": {"seed": 5},
            "request_id": "x",
        }
        messages = await service.generate(**fields)
        unary = await service.generation.GenerateUnary(make_request(**fields))
        assert unary.sequences[0].text == text_of(messages)
        assert list(unary.sequences[0].token_ids) == tokens_of(messages)
        assert unary.sequences[0].finish == finishes_of(messages)[0]
        for name in ("request_id", "prompt", "model", "seed"):
            assert getattr(unary, name) == getattr(messages[0], name)
        assert unary.usage == messages[-1].usage


async def test_the_first_message_introduces_the_request(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        for name in ("", "fake"):
            first, *rest = await service.generate(model=name, output={"prompt_token_ids": True})
            assert first.model == "fake" and len(first.request_id) == 32
            assert list(first.prompt.token_ids) == RAW.encode("hi").ids
            assert first.prompt.tokens == 2 and first.seed
            for message in rest:
                assert not (message.request_id or message.model or message.seed)
                assert not message.HasField("prompt")


async def test_a_request_may_ask_which_parameters_it_runs_with(checkpoint, model):
    """top_k is that of the model's generation_config.json."""
    async with run_service(checkpoint, HELLO, model=model) as service:
        fields = {"sampling": {"min_p": 0.25}, "stopping": {"max_tokens": 9, "stop": ["zzz"]}}
        first, *rest = await service.generate(output={"parameters": True}, **fields)
        sampling, stopping = first.parameters.sampling, first.parameters.stopping
        assert (sampling.min_p, sampling.top_k, sampling.seed) == (0.25, 40, first.seed)
        assert (stopping.max_tokens, stopping.min_tokens, list(stopping.stop)) == (9, 0, [])
        origins = first.parameters.origins
        assert origins["sampling.min_p"] == origins["stopping.max_tokens"] == "request"
        assert origins["sampling.top_k"] == "generation_config.json"
        assert (
            origins["sampling.top_p"]
            == origins["sampling.seed"]
            == origins["stopping.min_tokens"]
            == "default"
        )
        (end,) = first.parameters.ends
        assert (end.token_id, end.text, end.origin) == (END, "<|end|>", "config.json, tokenizer_config.json")
        assert not any(message.HasField("parameters") for message in rest)
        (plain, *_) = await service.generate(**fields)
        assert not plain.HasField("parameters")


async def test_ends_and_origins_of_a_request_that_changes_them(checkpoint, model):
    async with run_service(checkpoint, None, model=model) as service:
        request = make_request(
            request_id="mine",
            stopping={"ignore_eos": True, "stop_token_ids": [5, 4, 5], "max_tokens": 2},
            sampling={"beam_search": {"width": 2}, "n": 2},
        )
        call = service.generation.Generate(request)
        sent = await service.engine.requests.get()
        entry = service.frontend.parts.generator.registry.find(sent.request_id)
        assert entry is not None and entry.stream is not None
        parameters = entry.stream.parameters()
        assert parameters is not None
        ends = [(end.token_id, end.origin) for end in parameters.ends]
        assert ends == [(4, "stopping.stop_token_ids"), (5, "stopping.stop_token_ids")]
        assert parameters.origins["sampling.top_k"] == "sampling.beam_search"
        assert parameters.origins["sampling.n"] == "request"
        call.cancel()


async def test_what_truncation_removes_is_said(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        whole, *_ = await service.generate(prompt={"text": "hi there"})
        assert whole.prompt.truncated_tokens == 0
        cut, *_ = await service.generate(prompt={"text": "hi there", "truncate_to": 2})
        assert cut.prompt.tokens == 2
        assert cut.prompt.truncated_tokens == whole.prompt.tokens - 2


async def test_two_begins_of_a_prompt_are_logged(checkpoint, model, caplog):
    """Their number, not the prompt; the first one, and then each time that there are twice as many."""
    begin = model.bos_token_id
    async with run_service(checkpoint, HELLO, model=model) as service:
        for ids in ([begin, 7], *[[begin, begin, 7]] * 3):
            await service.generate(prompt={"token_ids": {"ids": ids}})
    logged = [each.getMessage() for each in caplog.records if "two BOS" in each.getMessage()]
    assert [text.split()[0] for text in logged] == ["1", "2"]


async def test_the_engine_gets_a_resolved_request(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        sampling = {"temperature": 0, "n": 1, "bad_words": ["the"], "logit_bias": {7: 1.5}}
        stopping = {"stop": ["zzz"], "time_limit": {"seconds": 9}, "stop_token_ids": [9], "min_tokens": 2}
        cache = {"salt": "s", "bypass": True}
        messages = await service.generate(
            sampling=sampling,
            stopping=stopping,
            cache=cache,
            request_id="mine",
            priority=-7,
            tenant="Zoë & Co.",
        )
        sent = await next_of(service.engine.requests)
        assert sent.request_id == "mine" == messages[0].request_id
        assert unpack_u32(sent.prompt_token_ids) == RAW.encode("hi").ids
        assert sent.sampling.temperature == 0 and sent.sampling.top_k == 40
        assert sent.sampling.seed == messages[0].seed and dict(sent.sampling.logit_bias) == {7: 1.5}
        assert sent.stopping.min_tokens == 2 and sent.stopping.time_limit.seconds == 9
        assert not sent.stopping.stop and not sent.sampling.bad_words
        words = [RAW.encode(word, add_special_tokens=False).ids for word in ("the", " the")]
        assert [list(word.ids) for word in sent.bad_words] == words
        assert (sent.cache_salt, sent.cache_bypass) == ("s", True)
        assert (sent.priority, sent.tenant) == (-7, "Zoë & Co.")
        assert not sent.HasField("deadline")


async def test_a_seed_is_used_as_it_is(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        first, *_ = await service.generate(sampling={"seed": 2**64 - 1})
        sent = await next_of(service.engine.requests)
        assert first.seed == sent.sampling.seed == 2**64 - 1


async def test_chat(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        chat = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
        assert text_of(await service.generate(prompt={"chat": chat})) == "hello é!"
        sent = await next_of(service.engine.requests)
        text = RAW.decode(unpack_u32(sent.prompt_token_ids), skip_special_tokens=False)
        assert text == "<|begin|><|user|>hi<|end|><|assistant|>"


async def test_echo(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        for output in ({"echo": True}, {"echo": True, "mode": "MODE_FINAL"}):
            messages = await service.generate(output=output)
            assert text_of(messages) == "hihello é!" and messages[0].sequences[0].text.startswith("hi")
        messages = await service.generate(output={"echo": True, "skip_special_tokens": False})
        assert text_of(messages) == "<|begin|>hihello é!"


async def test_a_prompt_that_ends_within_a_character(checkpoint, model):
    """With echo both parts are the character; without, the output begins with what is no text."""
    half, rest = encode("a你")[:-1], encode("你")[-1:]
    async with run_service(checkpoint, say(rest, encode("!")), model=model) as service:
        prompt = {"token_ids": {"ids": half}}
        for echo, text in ((True, "a你!"), (False, "\ufffd!")):
            assert text_of(await service.generate(prompt=prompt, output={"echo": echo})) == text


async def test_without_text(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        messages = await service.generate(output={"text": False, "token_ids": True})
        assert text_of(messages) == "" and tokens_of(messages) == encode("hello é!")


async def test_bytes_of_tokens(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        messages = await service.generate(output={"token_bytes": True, "prompt_token_ids": True})
        in_bytes = [part for message in messages for part in message.sequences[0].token_bytes]
        assert b"".join(in_bytes) == "hello é!".encode() and len(in_bytes) == 9
        assert list(messages[0].prompt.token_bytes) == [b"<|begin|>", b"hi"]


async def test_usage_and_timings(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        messages = await service.generate(output={"continuous_usage": True, "timings": True})
        counts = [message.usage.completion_tokens for message in messages]
        assert counts == sorted(counts) and counts[-1] == 9
        assert all(message.usage.prompt_tokens == 2 for message in messages)
        assert not any(message.HasField("timings") for message in messages[:-1])
        timings = messages[-1].timings
        parts = (timings.preprocess, timings.queue, timings.prefill, timings.decode)
        assert sum(part.ToNanoseconds() for part in parts) == timings.total.ToNanoseconds() > 0
        assert timings.preprocess.ToNanoseconds() > 0


async def test_several_sequences(checkpoint, model):
    def script(request):
        assert request.sampling.n == 3
        yield [Output(encode("a"), index=0), Output(encode("x"), index=1), Output(encode("é")[:1], index=2)]
        yield [Output(encode("b"), index=0), Output([END], EOS, END, index=1)]
        yield [Output(encode("é")[1:], MAX_TOKENS, index=2)]
        yield [Output([], ABORTED, index=0)]

    async with run_service(checkpoint, script, model=model) as service:
        messages = await service.generate(sampling={"n": 3}, output={"token_ids": True})
        assert [text_of(messages, index) for index in range(3)] == ["ab", "x", "é"]
        assert tokens_of(messages, 1) == [*encode("x"), END]
        for message in messages:
            indexes = [output.index for output in message.sequences]
            assert indexes and len(indexes) == len(set(indexes))
        assert sorted(finish.reason for finish in finishes_of(messages)) == [EOS, MAX_TOKENS, ABORTED]
        assert messages[-1].usage.completion_tokens == 6


# Ends.


@pytest.mark.parametrize(
    ("reason", "matched"),
    [
        ("EOS", END),
        ("STOP", 9),
        ("MAX_TOKENS", None),
        ("CONTEXT_LENGTH", None),
        ("TIME_LIMIT", None),
        ("ABORTED", None),
    ],
)
async def test_ends_by_the_engine(checkpoint, model, reason, matched):
    value = generation_pb2.FinishReason.Value(f"FINISH_REASON_{reason}")
    tokens = encode("a") if matched is None else [matched]

    def script(request):
        yield Output(encode("ok"))
        yield Output(tokens, value, matched or 0)

    async with run_service(checkpoint, script, model=model) as service:
        messages = await service.generate()
        (finish,) = finishes_of(messages)
        assert finish.reason == value
        assert finish.WhichOneof("matched") == (None if matched is None else "token_id")
        assert finish.token_id == (matched or 0)
        assert text_of(messages) == ("oka" if matched is None else "ok")
        assert messages[-1].usage.completion_tokens == 3
        assert service.engine.aborts.empty()


async def test_a_stop_string_across_tokens_ends_the_request(checkpoint, model):
    """The core hears of it, and what it sent meanwhile is dropped."""
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(
            make_request(stopping={"stop": ["lo wo"]}, output={"token_ids": True})
        )
        reading = asyncio.ensure_future(_all(call))
        request = await next_of(service.engine.requests)
        for piece in ("hel", "lo ", "world", "and more"):
            await service.engine.output(request.handle, Output(encode(piece)))
        messages = await reading
        assert text_of(messages) == "hel" and tokens_of(messages) == encode("hello wo")
        (finish,) = finishes_of(messages)
        assert (finish.reason, finish.stop) == (STOP, "lo wo")
        abort = await next_of(service.engine.aborts)
        assert (abort.handle, list(abort.indexes)) == (request.handle, [0])
        assert await call.code() == grpc.StatusCode.OK
        assert len(service.frontend.engine.journal) == 0


async def test_a_stop_string_ends_one_sequence_of_several(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        request = make_request(stopping={"stop": ["x"], "include_stop": True}, sampling={"n": 2})
        reading = asyncio.ensure_future(_all(service.generation.Generate(request)))
        handle = (await next_of(service.engine.requests)).handle
        await service.engine.output(handle, Output(encode("ax"), index=0), Output(encode("b"), index=1))
        abort = await next_of(service.engine.aborts)
        assert list(abort.indexes) == [0]
        await service.engine.output(handle, Output(encode("late"), index=0), Output(encode("c"), index=1))
        await service.engine.output(handle, Output([], MAX_TOKENS, index=1))
        messages = await reading
        assert [text_of(messages, index) for index in range(2)] == ["ax", "bc"]


async def _all(call) -> list[generation_pb2.GenerateResponse]:
    return [message async for message in call]


@pytest.mark.parametrize("how", ["cancel", "deadline", "channel"])
async def test_a_client_that_leaves_aborts_its_request(checkpoint, model, how):
    async with run_service(checkpoint, model=model) as service:
        if how == "deadline":
            call, request, seconds = await in_time(
                service, lambda seconds: service.generation.Generate(make_request(), timeout=seconds)
            )
        else:
            call = service.generation.Generate(make_request())
            request = await next_of(service.engine.requests)
        reading = asyncio.ensure_future(_all(call))
        assert request.HasField("deadline") == (how == "deadline")
        await service.engine.output(request.handle, Output(encode("a")))
        if how == "cancel":
            call.cancel()
        elif how == "channel":
            await service.channel.close()
        abort = await next_of(service.engine.aborts)
        assert (abort.handle, list(abort.indexes), abort.detach) == (request.handle, [], True)
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await reading
        if how == "deadline":
            assert 0 < request.deadline.ToMilliseconds() < 1000 * seconds + 500  # by two clocks
            assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("request_id", ["", "own"])
async def test_a_request_whose_client_may_come_back_has_a_grace(checkpoint, model, request_id):
    """Only its client knows an id that it chose: no other call can ask for what the server has named."""
    async with run_service(checkpoint, HELLO, model=model, disconnect_grace=1.5) as service:
        await service.generate(request_id=request_id)
        request = await next_of(service.engine.requests)
        assert request.disconnect_grace_ms == (1500 if request_id else 0)


async def test_a_request_that_ends_with_an_error_is_not_kept(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request(request_id="own"))
        request = await next_of(service.engine.requests)
        service.frontend.parts.generator.registry.abort(["own"])
        abort = await next_of(service.engine.aborts)
        assert (abort.handle, abort.detach) == (request.handle, False)
        call.cancel()


async def test_a_client_that_leaves_a_unary_call(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.GenerateUnary(make_request())
        waiting = asyncio.ensure_future(call)
        request = await next_of(service.engine.requests)
        waiting.cancel()
        assert (await next_of(service.engine.aborts)).handle == request.handle


async def test_the_engine_dies_and_requests_do_not_wait(checkpoint, model):
    """The client gets what there was, then UNAVAILABLE. (test_resume.py has the streams that wait.)"""
    async with run_service(checkpoint, model=model, resume_timeout=0, ready_timeout=0) as service:
        call = service.generation.Generate(make_request())
        request = await next_of(service.engine.requests)
        await service.engine.output(request.handle, Output(encode("ab")))
        messages = aiter(call)
        assert (await anext(messages)).sequences[0].text == "ab"
        await service.engine.stop()
        error = await failure_of(messages)
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert details_of(error)["ErrorInfo"].reason == "ENGINE_DEAD"
        error = await failure_of(service.generation.Generate(make_request()))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert details_of(error)["ErrorInfo"].reason == "ENGINE_NOT_READY"
        assert details_of(error)["RetryInfo"].retry_delay.ToMilliseconds() > 0


async def test_another_engine_takes_over(checkpoint, model):
    """A new epoch: old streams have failed, new ones work."""
    async with run_service(checkpoint, model=model, resume_timeout=0) as service:
        call = service.generation.Generate(make_request())
        await next_of(service.engine.requests)
        await service.engine.stop()
        assert details_of(await failure_of(call))["ErrorInfo"].reason == "ENGINE_DEAD"
        service.engine.epoch, service.engine.script = 2, HELLO
        await service.engine.start()
        await soon(service.frontend.wait_until_serving())
        assert text_of(await service.generate()) == "hello é!"


@pytest.mark.parametrize("after_tokens", [False, True])
async def test_the_engine_refuses(checkpoint, model, after_tokens):
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request())
        handle = (await next_of(service.engine.requests)).handle
        if after_tokens:
            await service.engine.output(handle, Output(encode("a")))
        await service.engine.fail(handle, code_pb2.INVALID_ARGUMENT, "TOO_LONG", "is too long", "prompt")
        error = await failure_of(call)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and error.details() == "is too long"
        details = details_of(error)
        assert details["ErrorInfo"].reason == "TOO_LONG"
        assert details["BadRequest"].field_violations[0].field == "prompt"
        assert service.engine.aborts.empty()  # the core has forgotten it


async def test_what_cannot_be_in_time_is_refused_at_once(checkpoint, model):
    """Before the first header, so that a client may try elsewhere; and it hears when to try here again."""
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request(), timeout=1000)
        handle = (await next_of(service.engine.requests)).handle
        delay = timedelta(seconds=2.5)
        await service.engine.fail(handle, 8, "DEADLINE_UNREACHABLE", "too late", retry_delay=delay)
        error = await failure_of(call)
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and not await call.initial_metadata()
        details = details_of(error)
        assert details["ErrorInfo"].reason == "DEADLINE_UNREACHABLE"
        assert details["RetryInfo"].retry_delay.ToTimedelta() == delay
        assert error.trailing_metadata()["grpc-retry-pushback-ms"] == "2500"


async def test_outputs_that_do_not_follow_one_another(checkpoint, model, caplog):
    async with run_service(checkpoint, model=model, resume_timeout=0) as service:
        call = service.generation.Generate(make_request())
        handle = (await next_of(service.engine.requests)).handle
        await service.engine.output(handle, Output(encode("a"), position=1))
        error = await failure_of(call)
        assert error.code() == grpc.StatusCode.INTERNAL
        assert (await next_of(service.engine.aborts)).handle == handle
        assert service.frontend.engine.protocol_errors == 1


# Refusals.


@pytest.mark.parametrize(
    ("fields", "code", "reason", "path"),
    [
        ({"sampling": {"top_p": 2}}, "INVALID_ARGUMENT", "INVALID_FIELD", "sampling.top_p"),
        ({"extensions": {"x": 1}}, "INVALID_ARGUMENT", "FEATURE_UNSUPPORTED", "extensions"),
        ({"prompt": {}}, "INVALID_ARGUMENT", "INVALID_FIELD", "prompt"),
        ({"prompt": {"text": ""}}, "INVALID_ARGUMENT", "INVALID_FIELD", "prompt.text"),
        (
            {"prompt": {"token_ids": {"ids": [512]}}},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "prompt.token_ids.ids",
        ),
        ({"prompt": {"text": "x" * 200}}, "INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED", "prompt"),
        ({"sampling": {"n": 33}}, "INVALID_ARGUMENT", "INVALID_FIELD", "sampling.n"),
        ({"model": "other"}, "NOT_FOUND", "MODEL_NOT_FOUND", None),
    ],
)
@pytest.mark.parametrize("unary", [False, True])
async def test_refusals(checkpoint, model, fields, code, reason, path, unary):
    async with run_service(checkpoint, HELLO, model=model) as service:
        method = service.generation.GenerateUnary if unary else service.generation.Generate
        error = await failure_of(method(make_request(**fields)))
        assert error.code() == grpc.StatusCode[code]
        details = details_of(error)
        assert (details["ErrorInfo"].reason, details["ErrorInfo"].domain) == (reason, "pagewire.v1")
        if path is not None:
            assert [part.field for part in details["BadRequest"].field_violations] == [path]
        assert service.engine.requests.empty()


async def test_context_length_in_numbers(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model) as service:
        error = await failure_of(service.generation.Generate(make_request(prompt={"text": "x" * 200})))
        metadata = details_of(error)["ErrorInfo"].metadata
        assert dict(metadata) == {"prompt_tokens": "201", "max_model_len": "200"}
        assert text_of(await service.generate(prompt={"text": "x" * 198}))


async def test_a_request_id_is_unique_while_it_is_in_flight(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request(request_id="x"))
        handle = (await next_of(service.engine.requests)).handle
        other = make_request(request_id="x", prompt={"text": "ho"})
        error = await failure_of(service.generation.Generate(other))
        assert error.code() == grpc.StatusCode.ALREADY_EXISTS
        await service.engine.output(handle, Output(encode("a"), MAX_TOKENS))
        assert text_of(await _all(call)) == "a"
        service.engine.script = HELLO
        assert text_of(await service.generate(request_id="x")) == "hello é!"


async def test_refusals_come_before_the_first_header(checkpoint, model):
    """Only then do clients retry by themselves."""
    policy = (
        '{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.01s",'
        '"maxBackoff":"0.01s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}'
    )
    async with run_service(checkpoint, model=model, wait=False) as service:
        attempts = 0
        require = service.frontend.engine.require

        def counting():
            nonlocal attempts
            attempts += 1
            return require()

        service.frontend.engine.require = counting
        options = [("grpc.service_config", policy)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options) as channel:
            stub = type(service.generation)(channel)
            error = await failure_of(stub.Generate(make_request()))
        assert error.code() == grpc.StatusCode.UNAVAILABLE and attempts == 3


async def test_a_message_that_is_too_large_is_grpcs_own_refusal(checkpoint, model):
    async with run_service(checkpoint, HELLO, model=model, max_request_bytes=10_000) as service:
        error = await failure_of(service.generation.Generate(make_request(prompt={"text": "x" * 20_000})))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and not details_of(error)


async def test_bugs_are_not_shown_to_clients(checkpoint, model, monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("a secret of the house")

    async with run_service(checkpoint, HELLO, model=model) as service:
        monkeypatch.setattr("frontend.streams.generator.resolve", broken)
        with caplog.at_level(logging.ERROR, logger=guard.__name__):
            error = await failure_of(service.generation.Generate(make_request()))
        assert error.code() == grpc.StatusCode.INTERNAL
        assert "secret" not in error.details() and "secret" in caplog.text
        assert details_of(error)["ErrorInfo"].reason == "INTERNAL"


# Abort.


async def test_abort_by_id(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        reading = asyncio.ensure_future(_all(service.generation.Generate(make_request(request_id="x"))))
        request = await next_of(service.engine.requests)
        await service.engine.output(request.handle, Output(encode("ab")))
        response = await service.generation.Abort(generation_pb2.AbortRequest(request_ids=["unknown", "x"]))
        assert list(response.aborted_request_ids) == ["x"]
        messages = await reading
        assert text_of(messages) == "ab"
        assert [finish.reason for finish in finishes_of(messages)] == [ABORTED]


async def test_abort_before_the_core_knows_the_request(checkpoint, model, monkeypatch):
    async with run_service(checkpoint, HELLO, model=model) as service:
        reader = service.frontend.parts.prompts
        read, entered, go = reader.read_for_generation, asyncio.Event(), asyncio.Event()

        async def slow(*arguments, **options):
            entered.set()
            await go.wait()
            return await read(*arguments, **options)

        monkeypatch.setattr(reader, "read_for_generation", slow)
        request = make_request(request_id="x", sampling={"n": 2})
        reading = asyncio.ensure_future(_all(service.generation.Generate(request)))
        await entered.wait()
        response = await service.generation.Abort(generation_pb2.AbortRequest(request_ids=["x"]))
        assert list(response.aborted_request_ids) == ["x"]
        go.set()
        messages = await reading
        assert [finish.reason for finish in finishes_of(messages)] == [ABORTED, ABORTED]
        assert service.engine.requests.empty()


async def test_a_later_call_has_the_request(checkpoint, model):
    """The core says to the earlier one that it goes on elsewhere; ends and aborts are of the later one."""
    async with run_service(checkpoint, model=model) as service:
        first = service.generation.Generate(make_request(request_id="x"))
        former = await next_of(service.engine.requests)
        await service.engine.output(former.handle, Output(encode("a")))
        assert text_of([await first.read()]) == "a"
        second = service.generation.Generate(make_request(request_id="x"))
        message = await next_of(service.engine.requests)
        assert message.content_digest == former.content_digest and message.handle != former.handle
        assert message.sampling.seed == former.sampling.seed and not message.delivered
        await service.engine.fail(former.handle, 10, "CONTINUED_ELSEWHERE", "text")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await first.read()
        error = caught.value
        assert error.code() == grpc.StatusCode.ABORTED
        assert details_of(error)["ErrorInfo"].reason == "CONTINUED_ELSEWHERE"
        assert service.frontend.parts.generator.registry.find("x").ticket == message.handle
        await service.engine.output(message.handle, Output(encode("ab"), MAX_TOKENS))
        assert text_of(await _all(second)) == "ab" and not service.frontend.parts.generator.registry


async def test_a_client_that_leaves_before_the_core_knows_the_request(checkpoint, model, monkeypatch):
    async with run_service(checkpoint, HELLO, model=model) as service:
        entered = asyncio.Event()

        async def forever(*_, **__):
            entered.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(service.frontend.parts.prompts, "read_for_generation", forever)
        call = service.generation.Generate(make_request(request_id="x"))
        await entered.wait()
        call.cancel()
        monkeypatch.undo()
        while True:  # until the id is free again
            try:
                messages = await service.generate(request_id="x")
                break
            except grpc.aio.AioRpcError as error:
                assert error.code() == grpc.StatusCode.ALREADY_EXISTS
        assert text_of(messages) == "hello é!"


# Load.


async def test_a_slow_client_gets_larger_messages(checkpoint, model):
    """It reads one message and then nothing, until everything has been generated."""
    steps, step = 600, encode("abcdefghijklmnopqrstuvwxyz" * 8)
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request(output={"token_ids": True}))
        handle = (await next_of(service.engine.requests)).handle
        await service.engine.output(handle, Output(step))
        reading = aiter(call)
        messages = [await anext(reading)]
        for place in range(1, steps):
            await service.engine.output(handle, Output(step, MAX_TOKENS if place == steps - 1 else 0))
        while len(service.frontend.engine.journal):
            await asyncio.sleep(0.01)
        messages += [message async for message in reading]
        assert tokens_of(messages) == step * steps
        assert text_of(messages) == "abcdefghijklmnopqrstuvwxyz" * 8 * steps
        assert len(messages) < steps / 2
        assert max(message.sequences[0].token_count for message in messages) > 20 * len(step)


async def test_256_streams_on_one_channel(checkpoint, model):
    def script(request):
        text = f"number {request.request_id} says hello"
        yield from (Output(encode(character)) for character in text)
        yield Output([END], EOS, END)

    async with run_service(checkpoint, script, model=model) as service:
        streams = await asyncio.gather(
            *(service.generate(request_id=str(number), stopping={"stop": ["zz"]}) for number in range(256))
        )
        for number, messages in enumerate(streams):
            assert text_of(messages) == f"number {number} says hello"
            assert messages[0].request_id == str(number)
        assert len(service.frontend.engine.journal) == 0
        assert service.engine.aborts.empty()


def test_the_fake_tokenizer_begins_with_bos():
    """What the tests above rely on."""
    assert RAW.encode("hi").ids[0] == BEGIN
