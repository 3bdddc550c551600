"""Generate through three processes, on the demo model."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from pagewire import Client, SamplingParams
from pagewire.local_service import Service
from pagewire.v1 import generation_pb2, prompt_pb2
from pagewire_client.errors import DeadlineExceeded, InvalidArgument, NotFound
from pagewire_client.results import FinishReason
from tests.e2e import services

GREEDY = SamplingParams(temperature=0, max_tokens=24)
SAMPLED = SamplingParams(temperature=1.0, seed=1234, max_tokens=24, ignore_eos=True)


def test_the_processes_are_three(demo: Service):
    found = {role: len(pids) for role, pids in services.settled(demo.pid).items()}
    readers = found.pop("reader")  # the frontend's children for large prompts, and what forks them
    assert readers >= 1 and found == {"engine": 1, "frontend": 1, "worker": 1}


def test_it_knows_the_capital_of_france(client: Client):
    result = client.generate("The capital of France is", GREEDY)
    assert "Paris" in result.text
    assert result.outputs[0].finish_reason is not None
    assert result.usage.prompt_tokens == result.prompt_tokens > 0
    assert result.usage.completion_tokens == len(result.token_ids)
    assert result.model == "demo" and result.request_id


def test_text_streams_while_it_is_made(client: Client):
    params = SamplingParams(temperature=0, max_tokens=600, ignore_eos=True)

    def comes_in_parts() -> bool:
        """Whether it is more than two messages: to a process that gets no time, all may come at once."""
        with client.stream("a b c d", params) as stream:
            deltas = list(stream)
        position = 0
        for delta in deltas:
            assert delta.position == position
            position += len(delta.token_ids)
        assert position == 600
        ends = [delta.finish_reason for delta in deltas]
        assert ends == [None] * (len(ends) - 1) + [FinishReason.MAX_TOKENS]
        ids = [token for delta in deltas for token in delta.token_ids]
        assert client.detokenize(ids) == "".join(delta.text for delta in deltas) == stream.generation.text
        return len(deltas) > 2

    services.wait_until(comes_in_parts)


def test_a_stream_begins_while_its_request_runs(client: Client):
    def is_seen() -> bool:
        """Whether the first token is here before the last one is there."""
        with client.stream("a b c d", GREEDY, max_tokens=600, ignore_eos=True) as stream:
            next(stream)
            return services.rank_load(client).running_requests == 1

    services.wait_until(is_seen)


def test_one_message_says_the_same_as_many(client: Client):
    for params in (GREEDY, SAMPLED):
        streamed = client.stream("1, 2, 3,", params).result()
        whole = client.generate("1, 2, 3,", params)
        assert (streamed.text, streamed.token_ids) == (whole.text, whole.token_ids)
        assert streamed.finish_reason == whole.finish_reason


def test_prompts_as_text_ids_and_conversation(client: Client):
    ids = client.tokenize("The capital of France is").token_ids
    assert (
        client.generate(ids, GREEDY).token_ids
        == client.generate("The capital of France is", GREEDY).token_ids
    )
    messages = [{"role": "user", "content": "What is the capital of Japan?"}]
    answer = client.chat(messages, temperature=0, max_tokens=40)
    assert "Tokyo" in answer.text and answer.finish_reason is FinishReason.EOS
    rendered = client.tokenize(messages)
    assert "What is the capital of Japan?" in rendered.text
    assert client.generate(rendered.token_ids, temperature=0, max_tokens=40).token_ids == answer.token_ids


def test_several_sequences_of_one_prompt(client: Client):
    with client.stream("Once", SAMPLED, n=4) as stream:
        deltas = list(stream)
    outputs = stream.generation.outputs
    assert [output.index for output in outputs] == [0, 1, 2, 3]
    assert all(output.finish_reason is FinishReason.MAX_TOKENS for output in outputs)
    assert len({tuple(output.token_ids) for output in outputs}) > 1
    assert stream.generation.usage.completion_tokens == 4 * 24
    for index in range(4):
        ends = [delta.finish_reason for delta in deltas if delta.index == index]
        assert ends[-1] is not None and ends[:-1] == [None] * (len(ends) - 1)
    alone = client.generate("Once", SAMPLED)
    assert alone.token_ids == outputs[0].token_ids  # the first of several is the one alone
    greedy = client.generate("Once", GREEDY, n=3)
    assert len({tuple(output.token_ids) for output in greedy.outputs}) == 1


def test_stop_strings(client: Client):
    free = client.generate("1, 2, 3,", temperature=0, max_tokens=40).text
    assert " 6," in free
    before = free[: free.index(" 6,")]
    with client.stream("1, 2, 3,", temperature=0, max_tokens=40, stop=[" 6,", "never"]) as stream:
        text = "".join(delta.text for delta in stream)
    output = stream.generation.outputs[0]
    assert (text, output.finish_reason, output.stop) == (before, FinishReason.STOP, " 6,")
    kept = client.generate("1, 2, 3,", temperature=0, max_tokens=40, stop=" 6,", include_stop=True)
    assert kept.text == before + " 6,"


def test_stop_tokens(client: Client):
    free = client.generate("1, 2, 3,", GREEDY).token_ids
    stop = free[3]
    output = client.generate("1, 2, 3,", GREEDY, stop_token_ids=[stop]).outputs[0]
    assert output.token_ids == free[: free.index(stop) + 1]
    assert (output.finish_reason, output.stop) == (FinishReason.STOP, stop)


def seeded_requests() -> list[tuple[str, SamplingParams]]:
    """Of different lengths, temperatures and seeds."""
    return [
        (
            " ".join(["The capital of France is"] * (1 + number % 5)),
            SamplingParams(
                temperature=0.5 + number % 3,
                top_p=0.9,
                seed=number,
                max_tokens=8 + number % 9,
                ignore_eos=True,
            ),
        )
        for number in range(32)
    ]


def all_at_once(client: Client) -> list[list[int]]:
    requests = seeded_requests()
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: client.generate(*request).token_ids, requests))


def test_seeds_give_the_same_tokens_alone_among_31_others_and_in_chunks(float32: Service):
    """12 tokens a step split every prompt but the shortest; 20 blocks hold a few requests at a time.

    In float32: torch's bfloat16 products round differently for other batch sizes.
    """
    with Client(float32.address) as client:
        alone = [client.generate(prompt, params).token_ids for prompt, params in seeded_requests()]
        assert all_at_once(client) == alone
    assert len({tuple(tokens) for tokens in alone}) > 20
    small = services.start(dtype="float32", max_num_batched_tokens=12, num_blocks=20, block_size=8)
    with small, Client(small.address) as client:
        assert all_at_once(client) == alone
        services.wait_until(lambda: services.is_idle(client))


def test_the_seed_of_an_unseeded_request_repeats_it(client: Client):
    first = client.generate("Once", temperature=1.0, max_tokens=16)
    again = client.generate("Once", temperature=1.0, max_tokens=16, seed=first.seed)
    assert first.token_ids == again.token_ids


def test_abort_from_another_connection(client: Client, demo: Service):
    with Client(demo.address) as other:
        options = {"max_tokens": 900, "ignore_eos": True}
        services.wait_until(lambda: services.aborted_elsewhere(client, other, "a", **options) == [1])


def test_time_limit_ends_a_request_and_a_deadline_fails_it(client: Client):
    limited = client.generate("a", max_tokens=900, ignore_eos=True, time_limit=0.05)
    assert limited.finish_reason is FinishReason.TIME_LIMIT
    with pytest.raises(DeadlineExceeded):
        client.generate("a", max_tokens=900, ignore_eos=True, timeout=0.05)


def test_a_closed_stream_frees_its_memory(client: Client):
    def holds_memory() -> bool:
        with client.stream("a", max_tokens=900, ignore_eos=True) as stream:
            next(stream)
            return services.rank_load(client).kv_used_tokens > 0

    services.wait_until(holds_memory)
    services.wait_until(lambda: services.is_idle(client))


def test_wrong_requests_are_refused_by_name(client: Client):
    with pytest.raises(InvalidArgument) as caught:
        client.generate("hi", top_p=2)
    assert caught.value.field == "sampling.top_p"
    with pytest.raises(InvalidArgument) as caught:
        client.generate("word " * 2000, max_tokens=1)
    assert caught.value.reason == "CONTEXT_LENGTH_EXCEEDED"
    with pytest.raises(NotFound):
        client.generate("hi", model="no-such-model")


def test_what_is_not_built_is_refused_by_name(demo: Service):
    request = generation_pb2.GenerateRequest(prompt=prompt_pb2.Prompt(text="hi"))
    request.prompt.media.add(data=b"x")
    with grpc.insecure_channel(demo.address) as channel:
        call = channel.unary_unary(
            "/pagewire.v1.GenerationService/GenerateUnary",
            request_serializer=generation_pb2.GenerateRequest.SerializeToString,
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "prompt.media" in caught.value.details()


def test_reflection_lists_everything(demo: Service):
    with grpc.insecure_channel(demo.address) as channel:
        services_listed = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {
        "grpc.health.v1.Health",
        "pagewire.v1.GenerationService",
        "pagewire.v1.ModelService",
        "pagewire.v1.TokenizerService",
        "pagewire.v1.AdminService",
    } <= services_listed


def test_load_is_watched(client: Client):
    seen = threading.Event()

    def watch() -> None:
        for load in client.watch_load(0.01):
            if load.ranks[0].running_requests:
                seen.set()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    while not seen.is_set():
        client.generate("a", max_tokens=100, ignore_eos=True)
    watcher.join()
