"""Classes, tenants and deadlines through the whole service: one row, and more than it can serve."""

import asyncio
from pathlib import Path

import pytest

from pagewire import AsyncClient
from pagewire_client.errors import InvalidArgument, ResourceExhausted
from tests.e2e import services
from tests.e2e.test_simulated import without_weights

FLOOD = 60


async def until(client: AsyncClient, waiting: int) -> None:
    """Until so many requests wait in the engine."""
    while True:
        (rank,) = (await client.load()).ranks
        if rank.waiting_requests >= waiting:
            return
        await asyncio.sleep(0.02)


async def overload(address: str) -> None:
    async with AsyncClient(address) as client:

        async def generate(length: int, **options: object) -> int:
            answer = await client.generate([20, 30], max_tokens=length, ignore_eos=True, **options)  # type: ignore[arg-type]
            return len(answer.token_ids)

        for _ in range(17):  # so that the engine knows how long a request takes: 20 steps of 5 ms or more
            await generate(20)
        flood = [asyncio.create_task(generate(300, tenant="flood")) for _ in range(FLOOD)]
        await until(client, FLOOD * 3 // 4)
        with pytest.raises(ResourceExhausted) as refusal:
            await generate(1, tenant="flood", timeout=2.5)
        assert refusal.value.reason == "DEADLINE_UNREACHABLE"
        assert refusal.value.retry_after is not None and refusal.value.retry_after > 0
        others = [generate(5, tenant="flood", priority=-1), generate(5, tenant="small")]
        assert await asyncio.gather(*others) == [5, 5]
        assert sum(task.done() for task in flood) < FLOOD / 2, "neither has waited for the flood"
        with pytest.raises(InvalidArgument) as refused:
            await generate(1, priority=1001)
        assert refused.value.field == "priority"
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)


def test_an_overloaded_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that cannot be in time is refused; a better class and a small tenant pass by the flood."""
    monkeypatch.setenv("PAGEWIRE_FAULT_SLOW_FACTOR", "30")
    options = {"device": "simulated", "profile": "cpu", "max_num_seqs": 1}
    with services.start(without_weights(tmp_path), **options) as service:
        asyncio.run(overload(service.address))
