"""ScoreContinuations: requests that are one to their client."""

import asyncio

import grpc
import pytest
from google.rpc import code_pb2

from frontend.auth.tokens import digest_of, entry_line
from frontend.streams.pooling import RequestGroup
from frontend.text.tokenizer import Tokenizer
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import generation_pb2, pooling_pb2
from tests.frontend.fakes import details_of, encode, fake_score, in_time, run_service, say, until
from tests.frontend.test_resume import next_of, restart
from tests.frontend.text.test_detokenizer import KINDS
from tests.logprob_columns import top

PROMPT = encode("The answer is")


def request_of(*continuations: str, **fields) -> pooling_pb2.ScoreContinuationsRequest:
    fields.setdefault("prompt", {"token_ids": {"ids": PROMPT}})
    return pooling_pb2.ScoreContinuationsRequest(continuations=continuations, **fields)


def expected(text: str) -> list[float]:
    return [fake_score(len(PROMPT) + i, token, top(0)).logprob for i, token in enumerate(encode(text))]


async def refused(service, request) -> tuple[grpc.StatusCode, list[str]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.pooling.ScoreContinuations(request)
    details = details_of(caught.value)
    fields = details["BadRequest"].field_violations if "BadRequest" in details else ()
    return caught.value.code(), [violation.field for violation in fields]


async def test_sums_in_the_order_of_the_request(checkpoint, model):
    texts = [" yes", " no", "é", " yes"]
    async with run_service(checkpoint, say([9]), model=model) as service:
        response = await service.pooling.ScoreContinuations(request_of(*texts, token_logprobs=True))
        requests = [await next_of(service.engine.requests) for _ in texts]
    for score, text in zip(response.scores, texts, strict=True):
        assert score.logprob == sum(expected(text))
        assert score.tokens == len(encode(text))
        assert list(score.token_logprobs) == expected(text)
    for request, text in zip(requests, texts, strict=True):
        assert unpack_u32(request.prompt_token_ids) == PROMPT + encode(text)
        assert request.prompt_logprobs_start == len(PROMPT) and request.stopping.max_tokens == 1
    total = sum(len(encode(text)) for text in texts)
    assert response.usage.prompt_tokens == len(PROMPT) + total and not response.usage.completion_tokens


@pytest.mark.parametrize(
    ("prompt", "continuation", "start"),
    [("a <go> b <go> c", "d <go> e", 9), ("a b c", "d <go> e", None), ("a b <g", "o> c", None)],
)
async def test_an_invocation_belongs_to_the_prompt(checkpoint, model, prompt, continuation, start):
    """Activated LoRA: a continuation is scored as if it had been generated, which activates nothing."""
    async with run_service(checkpoint, say([9]), model=model) as service:
        adapter = engine_pb2.NamedAdapter(
            name="activated", source="/a", digest=bytes(32), invocation_token_ids=encode("<go>")
        )
        await service.engine.tell_adapters(engine_pb2.AdapterTable(adapters=[adapter]))
        await until(lambda: bool(service.frontend.parts.engine.adapters._named))
        ids = {"token_ids": {"ids": encode(prompt)}}
        await service.pooling.ScoreContinuations(request_of(continuation, prompt=ids, model="activated"))
        sent = await next_of(service.engine.requests)
        assert unpack_u32(sent.prompt_token_ids) == encode(prompt + continuation)
        assert (sent.adapter.start if sent.HasField("adapter") else None) == start


async def test_all_of_them_are_of_the_class_and_the_tenant_of_the_whole(checkpoint, model):
    fields = {"priority": -3, "tenant": "acme", "cache": {"salt": "s", "bypass": True}}
    async with run_service(checkpoint, say([9]), model=model) as service:
        await service.pooling.ScoreContinuations(request_of("a", "b", **fields))
        for request in [await next_of(service.engine.requests) for _ in range(2)]:
            assert (request.priority, request.tenant) == (-3, "acme")
            assert (request.cache_salt, request.cache_bypass) == ("s", True)


async def test_only_sums_unless_asked_for(checkpoint, model):
    async with run_service(checkpoint, say([9]), model=model) as service:
        response = await service.pooling.ScoreContinuations(request_of("a"))
    assert not response.scores[0].token_logprobs


@pytest.mark.parametrize(
    ("fields", "texts", "path"),
    [
        ({}, [], "continuations"),
        ({}, ["a"] * 129, "continuations"),
        ({}, ["a" * (1 << 20), "a" * (1 << 20), "a"], "continuations"),
        ({}, ["a", ""], "continuations[1]"),
        ({}, ["a", "a" * 200], "continuations[1]"),
        ({"prompt": {}}, ["a"], "prompt"),
        ({"prompt": {"text": "a", "media": [{}]}}, ["a"], "prompt.media[0]"),
        ({"request_id": "a\n"}, ["a"], "request_id"),
        ({"priority": 1001}, ["a"], "priority"),
        ({"tenant": "t" * 257}, ["a"], "tenant"),
        ({"cache": {"salt": "s" * 257}}, ["a"], "cache.salt"),
        ({"request_id": "a" * 253}, ["a"], "request_id"),
    ],
)
async def test_what_is_refused(checkpoint, model, fields, texts, path):
    async with run_service(checkpoint, say([9]), model=model) as service:
        assert await refused(service, request_of(*texts, **fields)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            [path],
        )
        assert service.engine.requests.empty()


async def test_a_client_that_leaves_ends_all_of_them(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call = service.pooling.ScoreContinuations(request_of("a", "b", "c"))
        handles = {(await next_of(service.engine.requests)).handle for _ in range(3)}
        call.cancel()
        assert {(await next_of(service.engine.aborts)).handle for _ in range(3)} == handles


async def test_a_failure_of_one_is_the_failure_of_all(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call = asyncio.ensure_future(refused(service, request_of("a", "b")))
        first, second = [(await next_of(service.engine.requests)).handle for _ in range(2)]
        await service.engine.fail(first, code_pb2.INTERNAL, "NO_LOGITS", "NaN")
        assert (await call)[0] is grpc.StatusCode.INTERNAL
        assert (await next_of(service.engine.aborts)).handle == second


async def test_a_deadline_goes_to_the_core(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call, request, seconds = await in_time(
            service, lambda seconds: service.pooling.ScoreContinuations(request_of("a"), timeout=seconds)
        )
        assert 0 < request.deadline.ToMilliseconds() < 1000 * seconds + 500  # by two clocks
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (await next_of(service.engine.aborts)).handle == request.handle


async def test_they_can_be_aborted_by_the_id_of_the_whole(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call = asyncio.ensure_future(refused(service, request_of("a", "b", request_id="mine")))
        for _ in range(2):
            await next_of(service.engine.requests)
        again = await refused(service, request_of("a", request_id="mine"))
        assert again[0] is grpc.StatusCode.ALREADY_EXISTS
        ids = ["other", "mine"]
        response = await service.generation.Abort(generation_pb2.AbortRequest(request_ids=ids))
        assert list(response.aborted_request_ids) == ["mine"]
        assert (await call)[0] is grpc.StatusCode.ABORTED


async def test_they_outlive_the_core(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call = service.pooling.ScoreContinuations(request_of(" yes"))
        request = await next_of(service.engine.requests)
        await service.engine.score_prompt(request.handle, len(PROMPT), len(PROMPT) + 2)
        while service.frontend.engine._journal.in_flight()[0].sink.missing_prompt_logprobs == len(PROMPT):
            await asyncio.sleep(0.002)
        service.engine.script = say([9])
        await restart(service)
        assert (await call).scores[0].logprob == sum(expected(" yes"))


@pytest.mark.parametrize("kind", ["byte-level", "llama", "strips-two", "gemma"])
def test_text_that_goes_on_has_no_space_before_it(kind):
    """Behind a prompt it stands as it was written."""
    tokenizer = Tokenizer(KINDS[kind][0]())
    prompt = list(tokenizer.encode("so it is", add_special_tokens=False).token_ids)
    before = tokenizer.decode([prompt], skip_special_tokens=True)[0]
    for text in ("abc", " abc", "\nabc", "é", "  a b"):
        tokens = tokenizer.encode_following(text)
        assert tokenizer.decode([prompt + tokens], skip_special_tokens=True)[0] == before + text


async def test_the_prompt_is_copied_as_turns_come(checkpoint, model, tmp_path, monkeypatch):
    """128 copies of a long prompt at once were half a gigabyte, made before anything else went on."""
    made, real = [], RequestGroup.request
    monkeypatch.setattr(RequestGroup, "request", lambda *given: made.append(given) or real(*given))
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + entry_line(digest_of("alice's"), "alice", {"max_requests": 1}))
    async with run_service(checkpoint, model=model, auth_file=str(tokens)) as service:
        header = (("authorization", "Bearer alice's"),)
        call = service.pooling.ScoreContinuations(request_of("a", "b", "c"), metadata=header)
        await next_of(service.engine.requests)
        assert len(made) == 1
        call.cancel()
