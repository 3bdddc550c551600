"""The prefix cache, seen by clients: what it finds is reported, and no token changes by it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from pagewire import Client, SamplingParams
from pagewire.local_service import Service
from pagewire_client.results import Generation
from tests.e2e import services

BLOCK = 16
EXACT = {"dtype": "float32"}
"""In bfloat16 the same token may be rounded differently in a step of another size."""
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def cached(float32: Service) -> Iterator[Client]:
    """A client of a service that has a prefix cache."""
    with Client(float32.address) as client:
        yield client


@pytest.fixture(scope="module")
def plain() -> Iterator[Client]:
    """A client of one that has none."""
    with services.start(**EXACT, no_prefix_cache=True) as service, Client(service.address) as client:
        yield client


@pytest.fixture(autouse=True)
def cold(cached: Client) -> None:
    cached.reset_cache()


def conversation(client: Client) -> tuple[Generation, Generation]:
    """Two turns."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    first = client.chat(messages, GREEDY)
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And what is the capital of Japan?"},
    ]
    return first, client.chat(messages, GREEDY)


def test_the_second_turn_finds_the_first_with_its_answer(cached: Client, plain: Client):
    first, second = conversation(cached)
    assert first.usage.cached_prompt_tokens == 0
    assert second.usage.cached_prompt_tokens % BLOCK == 0
    assert second.usage.cached_prompt_tokens > first.prompt_tokens, "some of the answer is among them"
    for ours, theirs in zip((first, second), conversation(plain), strict=True):
        assert ours.token_ids == theirs.token_ids and theirs.usage.cached_prompt_tokens == 0
    services.wait_until(lambda: services.is_idle(cached))  # what is only cached is free


def prompts(first: int) -> list[list[int]]:
    """32 of 230 tokens, of which 200 are common."""
    common = [100 + 7 * i % 800 for i in range(200)]
    return [common + [first + (i * number) % 800 for i in range(1, 31)] for number in range(1, 33)]


def at_once(client: Client, requests: list[list[int]]) -> list[Generation]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda prompt: client.generate(prompt, GREEDY), requests))


def test_a_prefix_that_many_have_is_computed_once(cached: Client, plain: Client):
    """They arrive together: the prefix is found in the step that computes it."""
    results = at_once(cached, prompts(100))
    found = sorted(result.usage.cached_prompt_tokens for result in results)
    assert found[0] == 0 and found[1:] == [200 // BLOCK * BLOCK] * 31
    assert [r.token_ids for r in results] == [r.token_ids for r in at_once(plain, prompts(100))]


def test_cold_and_warm_give_the_same_tokens(cached: Client):
    cold = at_once(cached, prompts(150))
    warm = at_once(cached, prompts(150))
    assert [result.token_ids for result in warm] == [result.token_ids for result in cold]
    assert {result.usage.cached_prompt_tokens for result in warm} == {229 // BLOCK * BLOCK}


def test_a_pool_that_is_too_small_for_what_it_caches(plain: Client):
    """Sequences are preempted, blocks are evicted, and found where they are still there."""
    service = services.start(**EXACT, num_blocks=40, max_num_batched_tokens=64)
    with service, Client(service.address) as client:
        results = at_once(client, prompts(120)[:12])
        services.wait_until(lambda: services.is_idle(client))
    assert [r.token_ids for r in results] == [r.token_ids for r in at_once(plain, prompts(120)[:12])]


def test_a_reset_empties_the_cache(cached: Client):
    prompt = list(range(100, 150))
    counts = [cached.generate(prompt, GREEDY).usage.cached_prompt_tokens for _ in range(2)]
    cached.reset_cache()
    counts.append(cached.generate(prompt, GREEDY).usage.cached_prompt_tokens)
    assert counts == [0, 48, 0]


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({}, {}, 48),
        ({"cache_salt": "a"}, {"cache_salt": "a"}, 48),
        ({"cache_salt": "a"}, {"cache_salt": "b"}, 0),
        ({"cache_salt": "a"}, {}, 0),
        ({}, {"cache_bypass": True}, 0),
        ({"cache_bypass": True}, {}, 0),
    ],
)
def test_requests_say_with_which_others_they_share(
    cached: Client, first: dict[str, Any], second: dict[str, Any], found: int
):
    one, other = (cached.generate(list(range(100, 150)), GREEDY, **options) for options in (first, second))
    assert (one.usage.cached_prompt_tokens, other.usage.cached_prompt_tokens) == (0, found)
    assert one.token_ids == other.token_ids


def test_the_load_tells_the_hit_rate(cached: Client):
    for _ in range(2):
        cached.generate(list(range(300, 400)), GREEDY)
    assert 0 < services.rank_load(cached).prefix_cache_hit_rate < 1


def stored_hashes(key: str) -> list[int]:
    """Hashes of the blocks of one prompt, as a new service with this key tells them. Its one token fills no
    block, so that what comes is of the prompt alone, however late it is read."""
    flags = {"device": "simulated", "vllm_engine": True, "prefix_cache_key": key}
    with (
        services.start(**flags) as service,
        Client(service.address) as client,
        grpc.insecure_channel(service.address) as channel,
    ):
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        batches = stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=services.PATIENCE_S)
        next(batches)  # what the cache holds: nothing
        client.generate(list(range(16, 16 + 3 * BLOCK)), GREEDY, max_tokens=1)
        (event,) = next(batches).events
        batches.cancel()
    return [block.block_hash for block in event.stored.blocks]


def test_services_with_one_key_name_blocks_alike(tmp_path: Path):
    """For indexers that know blocks by their hashes alone."""
    keys = [tmp_path / name for name in "ab"]
    for number, key in enumerate(keys):
        key.write_text(f"{number}" * 64)
        key.chmod(0o600)
    one, other, third = (stored_hashes(str(key)) for key in (keys[0], keys[0], keys[1]))
    assert one == other and len(one) == 3
    assert not set(one) & set(third)
