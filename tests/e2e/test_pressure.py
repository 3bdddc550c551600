"""Many requests, small pools, clients that vanish: every request ends, every block is freed."""

import asyncio
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from pagewire import AsyncClient, Client, SamplingParams
from pagewire.local_service import Service
from pagewire_client.results import FinishReason, Generation
from tests.e2e import services


async def many_streams(address: str, count: int, params: SamplingParams) -> list[Generation]:
    async with AsyncClient(address) as client:
        streams = [client.stream(f"Stream {number}:", params) for number in range(count)]
        return await asyncio.gather(*(stream.result() for stream in streams))


async def test_256_streams_on_one_channel(demo: Service, client: Client):
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    results = await many_streams(demo.address, 256, params)
    assert all(len(result.token_ids) == 20 for result in results)
    assert all(result.finish_reason is FinishReason.MAX_TOKENS for result in results)
    services.wait_until(lambda: services.is_idle(client))


def test_a_pool_too_small_for_all_makes_requests_wait():
    """12 blocks of 8 tokens: three of the 24 requests fit at a time, and decoding preempts. What is preempted
    is computed again, or comes back from host memory where that is measured to be cheaper."""
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    prompts = [f"{number}, {number + 1}, {number + 2}," for number in range(24)]
    service = services.start(dtype="float32", num_blocks=12, block_size=8, swap_space=0.01)
    with service, Client(service.address) as small, ThreadPoolExecutor(24) as pool:
        assert small.model().max_model_len == 12 * 8
        alone = [small.generate(prompt, params).token_ids for prompt in prompts]
        assert not services.rank_load(small).preemptions
        while not services.rank_load(small).preemptions:  # when requests come decides about that
            together = list(pool.map(lambda prompt: small.generate(prompt, params).token_ids, prompts))
            assert together == alone
            services.wait_until(lambda: services.is_idle(small))


CLIENT = """
import sys
from pagewire import Client
streams = [Client(sys.argv[1]).stream("a", max_tokens=900, ignore_eos=True) for _ in range(3)]
for stream in streams:
    next(stream)
print("streaming", flush=True)
sys.stdin.read()
"""


def test_a_client_that_is_killed_frees_its_blocks(demo: Service, client: Client):
    vanishing = subprocess.Popen(
        [sys.executable, "-c", CLIENT, demo.address],
        cwd=services.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with vanishing:
        assert vanishing.stdout is not None
        assert vanishing.stdout.readline() == b"streaming\n"
        vanishing.send_signal(signal.SIGKILL)
    services.wait_until(lambda: services.is_idle(client))
