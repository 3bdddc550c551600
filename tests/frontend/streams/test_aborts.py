"""Aborts by id: one call of a tenant at the cores at a time."""

import asyncio
from collections.abc import Sequence

from frontend.streams.request_registry import Aborts, RequestRegistry


class HeldCores:
    """Cores that answer when they are told to."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answered = asyncio.Semaphore(0)

    async def abort_by_ids(self, request_ids: Sequence[str]) -> list[str]:
        self.asked.append(list(request_ids))
        await self.answered.acquire()
        return list(request_ids)


def aborts(cores: HeldCores) -> Aborts:
    return Aborts(RequestRegistry(cores), cores)  # type: ignore[arg-type]  # nothing is in flight here


async def test_a_tenant_has_one_call_at_the_cores_at_a_time():
    cores = HeldCores()
    made = aborts(cores)
    calls = [asyncio.create_task(made.abort("a", [f"x{i}"])) for i in range(3)]
    calls.append(asyncio.create_task(made.abort("b", ["y"])))
    for _ in range(5):
        await asyncio.sleep(0)
    assert cores.asked == [["a/x0"], ["b/y"]]
    for _ in calls:
        cores.answered.release()
    assert [await call for call in calls] == [["x0"], ["x1"], ["x2"], ["y"]]
    turns = made._turns
    assert not (turns._running or turns._waiting), "turns of tenants that wait for nothing are kept"


async def test_without_tenants_calls_do_not_wait():
    cores = HeldCores()
    made = aborts(cores)
    calls = [asyncio.create_task(made.abort(None, [f"x{i}"])) for i in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert cores.asked == [["x0"], ["x1"], ["x2"]]
    for _ in calls:
        cores.answered.release()
    await asyncio.gather(*calls)
