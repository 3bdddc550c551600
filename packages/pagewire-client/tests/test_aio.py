"""Both clients against a fake server: same results, same errors, and leaving cancels."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from google.rpc import error_details_pb2

from pagewire import AsyncClient, Client
from pagewire.v1 import admin_pb2
from pagewire.v1.pooling_pb2 import EMBEDDING_KIND_SPARSE
from pagewire_client.embeddings import TokenVectors
from pagewire_client.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RpcError,
    Unavailable,
)
from pagewire_client.results import FinishReason, Generation
from tests.pagewire import fakes
from tests.patience import PATIENCE_S


@pytest.fixture
def service() -> fakes.FakeService:
    return fakes.FakeService()


@pytest.fixture
def client(service: fakes.FakeService) -> Iterator[Client]:
    with fakes.running(service) as address, Client(address) as client:
        yield client


@pytest.fixture
async def aclient(service: fakes.FakeService) -> AsyncIterator[AsyncClient]:
    with fakes.running(service) as address:
        async with AsyncClient(address) as client:
            yield client


def check_words(result: Generation) -> None:
    assert (result.request_id, result.model, result.seed, result.prompt_tokens) == ("r1", "m", 7, 3)
    first, second = result.outputs
    assert (first.text, first.token_ids, first.finish_reason, first.stop) == (
        "Hello",
        [10, 11, 12],
        "stop",
        "!",
    )
    assert (second.text, second.token_ids, second.finish_reason, second.stop) == ("Bye", [20], "eos", 2)
    assert (result.text, result.token_ids, result.finish_reason) == ("Hello", [10, 11, 12], FinishReason.STOP)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (3, 4)
    assert result.timings is not None and result.timings.total == 1.5


def test_stream(client: Client, service: fakes.FakeService):
    service.respond = fakes.words
    with client.stream("hi", temperature=0) as stream:
        deltas = list(stream)
    assert [(delta.index, delta.text, delta.position) for delta in deltas] == [
        (0, "Hel", 0), (1, "Bye", 0), (0, "lo", 2), (0, "", 3),
    ]  # fmt: skip
    check_words(stream.generation)
    assert service.requests[0].prompt.text == "hi" and service.requests[0].sampling.HasField("temperature")
    with pytest.raises(StopIteration):
        next(stream)


async def test_async_stream(aclient: AsyncClient, service: fakes.FakeService):
    service.respond = fakes.words
    async with aclient.stream([1, 2]) as stream:
        deltas = [delta async for delta in stream]
    assert len(deltas) == 4 and service.requests[0].prompt.token_ids.ids == [1, 2]
    check_words(stream.generation)


def test_generate_and_result(client: Client, service: fakes.FakeService):
    service.respond = fakes.words
    assert client.generate("hi").text == "Hel"  # the fake's first message
    check_words(client.stream("hi").result())
    assert client.chat([{"role": "user", "content": "hi"}]).seed == 7
    assert service.requests[-1].prompt.chat.messages[0].role == "user"


async def test_async_generate_and_result(aclient: AsyncClient, service: fakes.FakeService):
    service.respond = fakes.words
    assert (await aclient.generate("hi")).text == "Hel"
    check_words(await aclient.stream("hi").result())
    assert (await aclient.chat([{"role": "user", "content": "hi"}])).seed == 7


def test_leaving_a_loop_cancels(client: Client, service: fakes.FakeService):
    """A grpc call that is merely not read any more goes on: the server would generate to the end."""
    service.respond = fakes.endless
    for delta in client.stream("hi"):
        assert delta.text == "Hel"
        break
    gc.collect()
    assert service.ended.wait(PATIENCE_S)


def test_closing_cancels_even_when_the_stream_is_kept(client: Client, service: fakes.FakeService):
    service.respond = fakes.endless
    with client.stream("hi") as stream:
        next(stream)
    assert service.ended.wait(PATIENCE_S)
    stream.close()


async def test_async_closing_cancels(aclient: AsyncClient, service: fakes.FakeService):
    service.respond = fakes.endless
    async with aclient.stream("hi") as stream:
        async for _ in stream:
            break
    assert await asyncio.to_thread(service.ended.wait, PATIENCE_S)


async def test_cancelling_the_task_that_reads_cancels(aclient: AsyncClient, service: fakes.FakeService):
    service.respond = fakes.endless
    task = asyncio.create_task(aclient.stream("hi").result())
    while not service.requests:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(service.ended.wait, PATIENCE_S)


async def test_cancelling_a_unary_call_cancels(aclient: AsyncClient, service: fakes.FakeService):
    def block(request, context):
        service.ended.wait(PATIENCE_S)
        yield from ()

    service.respond = block
    task = asyncio.create_task(aclient.generate("hi"))
    while not service.requests:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(service.ended.wait, PATIENCE_S)


def test_the_other_methods(client: Client, service: fakes.FakeService):
    assert client.abort(["a", "b"]) == ["a"]
    tokenized = client.tokenize([{"role": "user", "content": "hi"}])
    assert (tokenized.token_ids, tokenized.text) == ([5, 6], "rendered")
    assert client.detokenize([1, 2]) == "1 2"
    assert [model.name for model in client.models()] == ["m"]
    assert client.model().name == "m" and client.model("x").name == "x"
    assert client.server_info().version == "1"
    assert client.load().ranks[0].running_requests == 3
    client.reset_cache()
    assert isinstance(service.requests[-1], admin_pb2.ResetCacheRequest)


async def test_the_other_methods_async(aclient: AsyncClient, service: fakes.FakeService):
    assert await aclient.abort(["a", "b"]) == ["a"]
    assert (await aclient.tokenize("hi")).token_ids == [5, 6]
    assert await aclient.detokenize([1, 2]) == "1 2"
    assert [model.name for model in await aclient.models()] == ["m"]
    assert (await aclient.model()).name == "m"
    assert (await aclient.server_info()).version == "1"
    assert (await aclient.load()).ranks[0].running_requests == 3
    await aclient.reset_cache()
    assert isinstance(service.requests[-1], admin_pb2.ResetCacheRequest)


def test_lists_are_read_page_by_page(client: Client, service: fakes.FakeService):
    requests = client.list_requests(tenant="t", page_size=2)
    assert not service.requests, "nothing is sent before the first item is taken"
    for _ in range(2):  # each iteration begins anew
        assert [each.request_id for each in requests] == [*fakes.NAMES] and requests.total == 5
    tokens = [(each.page_token, each.page_size, each.tenant) for each in service.requests]
    assert tokens == 2 * [("", 2, "t"), ("2", 2, "t"), ("4", 2, "t")]
    service.requests.clear()
    assert next(iter(client.list_requests(page_size=3))).request_id == "a" and len(service.requests) == 1
    assert [each.tenant for each in client.list_tenants(page_size=5)] == [*fakes.NAMES]


async def test_lists_are_read_page_by_page_async(aclient: AsyncClient, service: fakes.FakeService):
    requests, tenants = aclient.list_requests(page_size=4), aclient.list_tenants(page_size=3)
    assert [each.request_id async for each in requests] == [*fakes.NAMES] and requests.total == 5
    assert [each.tenant async for each in tenants] == [*fakes.NAMES]
    assert [each.page_token for each in service.requests] == ["", "4", "", "3"]


def test_watching_load_ends_with_the_loop(client: Client, service: fakes.FakeService):
    for load in client.watch_load(0.5):
        assert load.ranks[0].running_requests == 1
        break
    gc.collect()
    assert service.ended.wait(PATIENCE_S)
    assert service.requests[0].min_interval.ToMilliseconds() == 500


async def test_watching_load_async(aclient: AsyncClient, service: fakes.FakeService):
    loads = aclient.watch_load()
    assert (await anext(loads)).ranks[0].running_requests == 1
    await loads.aclose()
    assert await asyncio.to_thread(service.ended.wait, PATIENCE_S)


def test_health(client: Client, service: fakes.FakeService):
    service.set_serving(False)
    assert not client.healthy()
    with pytest.raises(Unavailable, match="not ready"):
        client.wait_ready(0)
    service.set_serving(True)
    client.wait_ready(PATIENCE_S)
    assert client.healthy()


async def test_health_async(aclient: AsyncClient, service: fakes.FakeService):
    service.set_serving(False)
    assert not await aclient.healthy()
    with pytest.raises(Unavailable, match="not ready"):
        await aclient.wait_ready(0)
    service.set_serving(True)
    await aclient.wait_ready(PATIENCE_S)


def failing(code: grpc.StatusCode, *details: object):
    def respond(request, context):
        fakes.fail(context, code, "the message", *details)
        yield

    return respond


VIOLATION = error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p", description="wrong")
RETRY = error_details_pb2.RetryInfo()
RETRY.retry_delay.FromMilliseconds(250)
INFO = error_details_pb2.ErrorInfo(reason="WHY", metadata={"limit": "5"})


def check_error(error: RpcError) -> None:
    assert error.message == "the message" and "the message" in str(error)


def test_errors(client: Client, service: fakes.FakeService):
    service.respond = failing(
        grpc.StatusCode.INVALID_ARGUMENT, INFO, error_details_pb2.BadRequest(field_violations=[VIOLATION])
    )
    with pytest.raises(InvalidArgument) as invalid:
        client.generate("hi")
    check_error(invalid.value)
    assert (invalid.value.field, invalid.value.reason) == ("sampling.top_p", "WHY")
    assert invalid.value.metadata == {"limit": "5"} and invalid.value.retry_after is None
    service.respond = failing(grpc.StatusCode.RESOURCE_EXHAUSTED, RETRY)
    with pytest.raises(ResourceExhausted) as exhausted:
        client.stream("hi").result()
    assert exhausted.value.retry_after == 0.25
    for code, kind in ((grpc.StatusCode.NOT_FOUND, NotFound), (grpc.StatusCode.INTERNAL, InternalError)):
        service.respond = failing(code)
        with pytest.raises(kind):
            client.stream("hi").result()
    service.respond = failing(grpc.StatusCode.DATA_LOSS)
    with pytest.raises(RpcError) as other:
        client.generate("hi")
    assert other.value.code is grpc.StatusCode.DATA_LOSS


async def test_errors_async(aclient: AsyncClient, service: fakes.FakeService):
    service.respond = failing(
        grpc.StatusCode.INVALID_ARGUMENT, INFO, error_details_pb2.BadRequest(field_violations=[VIOLATION])
    )
    for call in (aclient.generate("hi"), aclient.stream("hi").result()):
        with pytest.raises(InvalidArgument) as invalid:
            await call
        assert (invalid.value.field, invalid.value.reason) == ("sampling.top_p", "WHY")


def test_a_timeout(client: Client, service: fakes.FakeService):
    service.respond = fakes.endless
    with pytest.raises(DeadlineExceeded):
        client.stream("hi", timeout=0.05).result()


async def test_a_timeout_async(aclient: AsyncClient, service: fakes.FakeService):
    service.respond = fakes.endless
    with pytest.raises(DeadlineExceeded):
        await aclient.stream("hi", timeout=0.05).result()


def test_no_server_there():
    with Client("127.0.0.1:1") as client:
        with pytest.raises(Unavailable) as caught:
            client.generate("hi")
        assert "pagewire serve" in caught.value.todo
        with pytest.raises(Unavailable):
            client.wait_ready(0)


def test_scores_of_continuations(client: Client, service: fakes.FakeService):
    scores = client.score_continuations("hi", [" you", " me"], token_logprobs=True, request_id="r")
    assert [(score.logprob, score.num_tokens, score.token_logprobs) for score in scores] == [
        (-1.5, 2, [-1, -0.5])
    ] * 2
    (request,) = service.requests
    assert (request.prompt.text, list(request.continuations)) == ("hi", [" you", " me"])
    assert request.token_logprobs and request.request_id == "r"
    client.score_continuations("hi", ["a"], priority=2, tenant="t", cache_salt="s", cache_bypass=True)
    request = service.requests[-1]
    assert (request.priority, request.tenant, request.cache.salt) == (2, "t", "s") and request.cache.bypass


async def test_async_scores_of_continuations(aclient: AsyncClient, service: fakes.FakeService):
    assert len(await aclient.score_continuations([1, 2], ["a"])) == 1
    assert list(service.requests[0].prompt.token_ids.ids) == [1, 2]


def test_embeddings(client: Client, service: fakes.FakeService):
    assert client.embed(["a", [1, 2]], dimensions=2, normalize=False, request_id="r") == [[0, 0.5], [1, 0.5]]
    (request,) = service.requests
    assert request.inputs[0].text == "a" and list(request.inputs[1].token_ids.ids) == [1, 2]
    assert (request.dimensions, request.normalize, request.request_id) == (2, False, "r")
    for one in ("text", [7, 8]):
        assert client.embed(one, priority=2, tenant="t", cache_salt="s", cache_bypass=True) == [[0, 0.5]]
    request = service.requests[-1]
    assert (request.priority, request.tenant, request.cache.salt) == (2, "t", "s") and request.cache.bypass
    assert not request.HasField("dimensions") and not request.HasField("normalize")
    assert not request.HasField("prompt_name") and not request.raw_dtype
    assert client.embed("a", precision="binary", prompt_name="") == [[-128, 127]]
    assert client.embed("a", precision="ubinary", prompt_name="query") == [[128, 127]]
    assert service.requests[-1].prompt_name == "query" and service.requests[-2].HasField("prompt_name")
    with pytest.raises(TypeError):
        client.embed(b"bytes")  # type: ignore[arg-type]


def test_sparse_vectors(client: Client, service: fakes.FakeService):
    assert client.embed_sparse(["a", "b"], normalize=True) == [{7: 0, 8: 0.5}, {7: 1, 8: 0.5}]
    (request,) = service.requests
    assert request.normalize and request.kind == EMBEDDING_KIND_SPARSE


def test_vectors_of_tokens(client: Client, service: fakes.FakeService):
    found = client.embed_tokens(["a", "b"], dimensions=1, prompt_name="query")
    assert found == [TokenVectors([7, 8], [[0], [0.5]]), TokenVectors([7, 8], [[1], [0.5]])]
    (request,) = service.requests
    assert (request.dimensions, request.prompt_name, request.inputs[1].text) == (1, "query", "b")
    assert client.embed_tokens("a", precision="binary") == [TokenVectors([7, 8], [[-128], [127]])]


def test_classes(client: Client, service: fakes.FakeService):
    found = client.classify(["x", [1, 2]], priority=2, tenant="t", cache_salt="s")
    assert found.labels == ["a", "b"] and found.probabilities == [[0.25, 0.75]] * 2
    (request,) = service.requests
    assert request.inputs[0].text == "x" and list(request.inputs[1].token_ids.ids) == [1, 2]
    assert (request.priority, request.tenant, request.cache.salt) == (2, "t", "s")
    with pytest.raises(TypeError, match="priorty"):
        client.classify("x", priorty=2)  # type: ignore[call-arg]


def test_scores_of_documents(client: Client, service: fakes.FakeService):
    found = client.score("q", ["x", "y"], top_n=2, instruction="i", priority=2, tenant="t", cache_salt="s")
    assert [(each.index, each.score) for each in found] == [(1, 0.5), (0, 0.25)]
    (request,) = service.requests
    assert request.query.text == "q" and [each.text for each in request.documents] == ["x", "y"]
    assert (request.top_n, request.instruction) == (2, "i")
    assert (request.priority, request.tenant, request.cache.salt) == (2, "t", "s")


async def test_async_embeddings(aclient: AsyncClient, service: fakes.FakeService):
    assert await aclient.embed(["a"]) == [[0, 0.5]]


def test_stream_on_a_closed_client(service: fakes.FakeService):
    """Raises; the stream object that was not made leaves no "Exception ignored in __del__"."""
    with fakes.running(service) as address:
        client = Client(address)
        client.close()
        with pytest.raises(ValueError):
            client.stream("hi")
    gc.collect()


async def test_async_stream_on_a_closed_client(service: fakes.FakeService):
    with fakes.running(service) as address:
        client = AsyncClient(address)
        await client.close()
        with pytest.raises(Exception, match="closed"):
            await anext(client.stream("hi"))
    gc.collect()
