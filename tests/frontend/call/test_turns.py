"""Whose job is next at a few processes."""

import asyncio

import pytest

from frontend.call.turns import MOST_KNOWN, TenantTurns
from frontend.prompts.process_pool import PromptProcesses
from frontend.prompts.prompt_reader import PromptReader
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import reader_pb2
from pagewire.v1 import prompt_pb2
from tests.patience import soon


class Jobs:
    """Jobs that hold their turns until they are told to end."""

    def __init__(self, num_turns: int) -> None:
        self.turns = TenantTurns(num_turns, share=lambda tenant: max(1, num_turns // 2))
        self.running: list[str | None] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def add(self, *tenants: str | None, costs: float = 1) -> None:
        for tenant in tenants:
            self.tasks.append(asyncio.create_task(self._begin(tenant, costs)))
        await asyncio.sleep(0)

    async def _begin(self, tenant: str | None, cost: float) -> None:
        await self.turns.begin(tenant, cost)
        self.running.append(tenant)

    async def end(self, tenant: str | None) -> None:
        self.running.remove(tenant)
        self.turns.end(tenant)
        await asyncio.sleep(0)


async def test_a_tenant_with_many_jobs_has_half_of_the_processes():
    jobs = Jobs(4)
    await jobs.add(*["alice"] * 50)
    assert jobs.running == ["alice"] * 2
    await jobs.add("bob", "carol", "bob")
    assert sorted(jobs.running) == ["alice", "alice", "bob", "carol"]
    await jobs.end("alice")
    assert sorted(jobs.running) == ["alice", "alice", "bob", "carol"]
    await jobs.end("carol")
    assert sorted(jobs.running) == ["alice", "alice", "bob", "bob"]
    await jobs.end("bob")
    assert sorted(jobs.running) == ["alice", "alice", "bob"], "a process stays free for others"
    for task in jobs.tasks:
        task.cancel()


async def test_one_process_goes_from_tenant_to_tenant():
    jobs = Jobs(1)
    await jobs.add("alice", "alice", "alice", "bob", "carol", "bob")
    order = []
    for _ in range(6):
        order += jobs.running
        await jobs.end(jobs.running[0])
    assert order == ["alice", "bob", "carol", "alice", "bob", "alice"]


async def test_turns_are_shared_by_cost():
    """Beside jobs of cost 10, a tenant has ten jobs of cost 1 for each, also where it comes later; and it has
    saved nothing up while it had none."""
    jobs = Jobs(1)
    await jobs.add(*["alice"] * 4, costs=10)
    await jobs.end("alice")
    await jobs.add(*["bob"] * 25)
    order = []
    for _ in range(28):
        order += jobs.running
        await jobs.end(jobs.running[0])
    assert "".join(tenant[0] for tenant in order) == "a" + "b" * 10 + "a" + "b" * 10 + "a" + "b" * 5


async def test_jobs_that_are_cancelled_leave_the_line():
    """A tenant may begin and cancel any number of them while one is running."""
    jobs = Jobs(1)
    await jobs.add(*["alice"] * 100)
    for task in jobs.tasks[1:]:
        task.cancel()
    await asyncio.wait(jobs.tasks[1:])
    assert not jobs.turns.num_waiting and not jobs.turns._waiting


async def test_without_authentication_there_is_one_line():
    jobs = Jobs(2)
    await jobs.add(*[None] * 3)
    assert jobs.running == [None, None]
    await jobs.end(None)
    assert jobs.running == [None, None]
    await jobs.end(None)
    await jobs.end(None)


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_client_that_leaves_gives_its_turn_back(is_granted: bool):
    jobs = Jobs(1)
    await jobs.add("alice", "bob")
    if is_granted:  # its turn comes in the same round of the loop in which it leaves
        jobs.turns.end("alice")
    jobs.tasks[1].cancel()
    await asyncio.sleep(0)
    if not is_granted:
        jobs.turns.end("alice")
    await soon(jobs.turns.begin("carol"))


async def test_a_share_alone_may_bound_a_tenant_and_may_change():
    """A share that grows lets several jobs in when one of the tenant's ends."""
    share, running = {"alice": 2, "bob": 1}, list[str]()
    turns = TenantTurns(None, share=share.__getitem__)

    async def job(tenant: str) -> None:
        await turns.begin(tenant)
        running.append(tenant)

    tasks = [asyncio.create_task(job(tenant)) for tenant in ["alice"] * 6 + ["bob"] * 2]
    await asyncio.sleep(0)
    assert running == ["alice", "alice", "bob"] and not turns.has_room("alice")
    share["alice"] = 4
    assert turns.has_room("alice")
    turns.end("alice")
    await asyncio.sleep(0)
    assert running == ["alice", "alice", "bob", "alice", "alice", "alice"]
    assert turns.num_running("alice") == 4
    share["alice"] = 1
    turns.end("alice")
    await asyncio.sleep(0)
    assert running.count("alice") == 5, "the others first come below the share"
    for task in tasks:
        task.cancel()


async def test_tenants_that_came_once_are_forgotten():
    turns = TenantTurns(1)
    for number in range(3 * MOST_KNOWN):
        await turns.begin(f"tenant-{number}")
        turns.end(f"tenant-{number}")
        assert len(turns._next) <= MOST_KNOWN


async def test_jobs_of_every_kind_take_turns(checkpoint, model, monkeypatch: pytest.MonkeyPatch):
    """A tenant whose grammars take seconds each keeps no other tenant's from being judged."""
    begun: list[str | None] = []

    async def begin(self: TenantTurns, tenant: str | None, cost: float) -> None:
        begun.append(tenant)
        raise ConnectionError

    monkeypatch.setattr(TenantTurns, "begin", begin)
    processes = PromptProcesses(FrontendConfig(model=str(checkpoint)))
    reader = PromptReader(model.tokenizer, model.chat_template, 1, processes)
    long = "x" * 300_000
    for job in (
        reader.read(prompt_pb2.Prompt(text=long), "prompt", vocab_size=512, tenant="a"),
        reader.read_words([long], "b"),
        reader.read_continuations([long], "c"),
        reader.read_grammar(reader_pb2.AnswerForm(), "d"),
    ):
        with pytest.raises(ConnectionError):
            await job
    assert begun == ["a", "b", "c", "d"]
    await reader.close()
