"""Whose job the tokenizer's threads run next: by the order in which jobs begin, not by time."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from frontend.auth.tokens import digest_of, entry_line
from frontend.errors import InvalidRequest
from frontend.model.info import ModelInfo
from frontend.prompts.prompt_encoding import PromptEncoder, TokenizedPrompt
from frontend.prompts.prompt_reader import FEW_IDS, PromptReader
from pagewire.v1.prompt_pb2 import Prompt
from pagewire.v1.tokenizer_pb2 import DetokenizeRequest, TokenizeRequest
from tests.frontend.auth.test_authenticator import bearer
from tests.frontend.fakes import make_request, run_service, say, until
from tests.patience import PATIENCE_S


class Work:
    """Jobs for one thread, of which the first holds it until it is released."""

    def __init__(self, model: ModelInfo) -> None:
        self.threads = PromptReader(model.tokenizer, None, 1)
        self.begun: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._held, self._release = threading.Event(), threading.Event()

    def add(self, name: str, tenant: str | None, weight: int = 1) -> asyncio.Task[None]:
        self.tasks.append(
            asyncio.create_task(self.threads.run(lambda: self.begun.append(name), tenant, weight))
        )
        return self.tasks[-1]

    async def hold(self) -> asyncio.Task[bool]:
        def wait() -> bool:
            self._held.set()
            return self._release.wait(PATIENCE_S)

        task = asyncio.create_task(self.threads.run(wait, None, 1))
        await asyncio.to_thread(self._held.wait, 60)
        return task

    def release(self) -> None:
        self._release.set()


@pytest.fixture
async def work(model: ModelInfo) -> AsyncIterator[Work]:
    made = Work(model)
    yield made
    made.release()
    await made.threads.close()


async def test_a_hundred_heavy_jobs_delay_a_neighbour_by_one(work: Work) -> None:
    await work.hold()
    for place in range(100):
        work.add(f"a{place}", "alice", 50_000)
    await asyncio.sleep(0)
    for place in range(3):
        work.add(f"b{place}", "bob", 100)
    await asyncio.sleep(0)
    assert work.threads.jobs.turns.num_waiting == 103
    work.release()
    await asyncio.gather(*work.tasks)
    assert work.begun[:5] == ["a0", "b0", "b1", "b2", "a1"]
    assert work.begun[4:] == [f"a{place}" for place in range(1, 100)], "and none of them is lost"


async def test_a_job_that_is_cancelled_before_its_turn_never_runs(work: Work) -> None:
    await work.hold()
    left, stays = work.add("left", "alice"), work.add("stays", "alice")
    await asyncio.sleep(0)
    left.cancel()
    work.release()
    await stays
    assert work.begun == ["stays"] and left.cancelled() and not work.threads.jobs.turns.num_waiting


async def test_a_thread_is_busy_until_its_job_is_done_though_the_caller_has_left(work: Work) -> None:
    """Else the jobs of one tenant would wait in the line of the threads, which knows no tenants."""
    held = await work.hold()
    held.cancel()
    await asyncio.wait([held])
    job = work.add("a", "alice")
    await asyncio.sleep(0)
    assert work.threads.jobs.turns.num_waiting == 1
    work.release()
    await job
    assert work.begun == ["a"]


async def test_few_token_ids_need_no_thread(work: Work) -> None:
    await work.hold()
    few, many = (Prompt(token_ids={"ids": [7] * count}) for count in (FEW_IDS, FEW_IDS + 1))
    assert len((await work.threads.read(few, "prompt", vocab_size=8)).token_ids) == FEW_IDS
    with pytest.raises(InvalidRequest):
        await work.threads.read(few, "prompt", vocab_size=7)
    reading = asyncio.create_task(work.threads.read(many, "prompt", vocab_size=8))
    await asyncio.sleep(0)
    assert work.threads.jobs.turns.num_waiting == 1
    work.release()
    assert len((await reading).token_ids) == FEW_IDS + 1


async def test_an_error_of_a_job_is_its_callers(work: Work) -> None:
    with pytest.raises(ZeroDivisionError):
        await work.threads.run(lambda: 1 // 0, "alice", 1)
    await work.add("a", "alice")


@pytest.mark.parametrize("has_others", [False, True])
async def test_a_thread_stays_free_for_others_while_they_have_calls(
    model: ModelInfo, has_others: bool
) -> None:
    reader = PromptReader(model.tokenizer, None, 4, serves_others=lambda tenant: has_others)
    release = threading.Event()
    jobs = [asyncio.create_task(reader.run(release.wait, "alice", 1)) for _ in range(6)]
    await asyncio.sleep(0)
    assert reader.jobs.turns.num_running("alice") == (2 if has_others else 4)
    release.set()
    await asyncio.gather(*jobs)
    await reader.close()


async def test_a_job_that_takes_too_long_ends_its_turn_once(model: ModelInfo) -> None:
    reader, release = PromptReader(model.tokenizer, None, 2), threading.Event()
    with pytest.raises(TimeoutError):
        await reader.run(lambda: release.wait(PATIENCE_S), "alice", 1, 0.01)
    assert reader.jobs.turns.num_free == 2
    release.set()
    assert await reader.run(lambda: "done", "alice", 1) == "done"
    await reader.close()
    assert reader.jobs.turns.num_free == 2 and not reader.jobs.running


async def test_a_generation_comes_before_the_hundred_calls_of_another_tenant(
    checkpoint: Path, model: ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts are read, and vectors and texts are made, in the turns of the callers' tenants."""
    tokens = tmp_path / "tokens.yaml"
    lines = [entry_line(digest_of(f"{name}'s"), name, {}) for name in ("alice", "bob")]
    tokens.write_text("tokens:\n" + "".join(lines))
    settings = {"auth_file": str(tokens), "tokenizer_threads": 1}
    held, release, read = threading.Event(), threading.Event(), list[str]()
    encode = PromptEncoder.read

    def recorded(self: PromptEncoder, prompt: Prompt, *rest: Any, **options: Any) -> TokenizedPrompt:
        read.append(prompt.text[:1])
        return encode(self, prompt, *rest, **options)

    def hold() -> bool:
        held.set()
        return release.wait(PATIENCE_S)

    monkeypatch.setattr(PromptEncoder, "read", recorded)
    async with run_service(checkpoint, say([65]), model=model, **settings) as service:
        prompts = service.frontend.parts.prompts
        holding = asyncio.create_task(prompts.run(hold, None, 1))
        await asyncio.to_thread(held.wait, 60)
        heavy = TokenizeRequest(prompts=[{"text": "a" * 60_000}], count_only=True)
        calls = [service.tokenizer.Tokenize(heavy, metadata=bearer("alice's")) for _ in range(50)]
        ids = DetokenizeRequest(sequences=[{"ids": [65] * 1000}])
        calls += [service.tokenizer.Detokenize(ids, metadata=bearer("alice's")) for _ in range(50)]
        await until(lambda: prompts.jobs.turns.num_waiting == 100)
        answer = service.generation.GenerateUnary(
            make_request(prompt={"text": "b"}, stopping={"max_tokens": 1}), metadata=bearer("bob's")
        )
        await until(lambda: prompts.jobs.turns.num_waiting == 101)
        release.set()
        await asyncio.gather(answer, holding, *calls)
        assert read.index("b") <= 1 and read.count("a") == 50
