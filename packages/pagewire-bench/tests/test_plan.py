"""What can be wrong about the flags of a load test is said before anything is sent."""

import asyncio
import json
from pathlib import Path

import pytest

from bench_fakes import FakeTarget
from pagewire import flags
from pagewire.command_config import BenchConfig
from pagewire.errors import PagewireError
from pagewire.flags import UsageError
from pagewire_bench.plan import BenchPlan
from pagewire_bench.record import BenchRecord
from pagewire_bench.report.page import page
from pagewire_bench.report.table import table_lines
from pagewire_bench.targets.target import ServedModel


class Served(FakeTarget):
    """A model with a vocabulary and a context."""

    async def open(self) -> ServedModel:
        return ServedModel("demo", "fake 1", vocab_size=100, max_model_len=64)

    async def send(self, request, on_tokens):  # noqa: ANN001
        self.prompts = [*getattr(self, "prompts", []), request.prompt]
        return await super().send(type(request)([len(self.prompts)], request.max_tokens), on_tokens)


def plan(*arguments: str) -> BenchPlan:
    return BenchPlan(flags.parse(BenchConfig, arguments, command="bench", environment={}))


async def measured(*arguments: str, target: FakeTarget | None = None) -> BenchRecord:
    shown: list[str] = []
    record = await plan(*arguments).measure(lambda: target or Served(), shown.append)
    assert shown[-1] == ""
    return record


async def test_a_sweep():
    arguments = ("--concurrency=1,2", "--num-requests=3", "--repeats=2", "--goodput=ttft=1e6")
    record = await measured(*arguments, "--input-len=8", "--output-len=3", "--seed=4")
    assert [run.load.name for run in record.runs] == ["1 concurrent", "2 concurrent"] * 2
    assert [len(run.traces) for run in record.runs] == [3] * 4
    assert (
        record.about["model"] == "demo" and record.about["seed"] == 4 and record.about["server"] == "fake 1"
    )
    assert not {"token_file", "action", "rate", "url"} & set(record.about)
    assert record.figures(record.loads()[0]).good_share == 1
    json.dumps(dict(record.about))


async def test_prompts_of_a_file_may_end_early(tmp_path: Path):
    (tmp_path / "prompts").write_text('{"prompt": "a", "max_tokens": 50}\n')
    target = Served()
    record = await measured(
        f"--prompts={tmp_path / 'prompts'}", "--num-requests=2", "--rate=500", target=target
    )
    assert not any(trace.error for run in record.runs for trace in run.traces)
    assert set(target.prompts) == {"a"}
    assert record.about["rate"] == "500" and "concurrency" not in record.about


async def test_a_workload_shrinks_to_the_context():
    target = Served(messages=29)
    await measured(
        "--workload=prefix", "--num-requests=1", "--concurrency=1", "--no-ignore-eos", target=target
    )
    assert {len(prompt) for prompt in target.prompts} == {59}  # 512 and 32 by 64 / 576, rounded down


async def test_lengths_that_the_context_cannot_hold():
    with pytest.raises(UsageError, match="--output-len make 65 tokens: the context of demo has 64"):
        await measured("--input-len=32", "--output-len=30..33")


async def test_a_service_that_refuses_the_first_request():
    target = Served()
    target.failing = {1}
    with pytest.raises(PagewireError, match="the first request failed: BUSY: no room"):
        await measured("--input-len=8", "--output-len=3", target=target)


@pytest.mark.parametrize(
    ("hanging", "loads"),
    [(3, None), (5, ["1 concurrent"]), (6, ["1 concurrent"]), (7, ["1 concurrent", "2 concurrent"])],
)
async def test_a_cancelled_load_test_has_the_levels_so_far(hanging: int, loads: list[str] | None):
    """Requests 1 and 2 are those of the warm-up; the first level has 3 to 5. What hangs is not complete."""
    target = Served()
    target.hanging = {hanging, hanging + 1}
    arguments = ["--concurrency=1,2", "--num-requests=3", "--input-len=8", "--output-len=3"]
    task = asyncio.create_task(plan(*arguments).measure(lambda: target, lambda text: None))
    while target.in_flight == 0 or target.sent[-1] < hanging:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    if loads is None:
        with pytest.raises(asyncio.CancelledError):
            await task
        return
    record = await task
    assert [run.load.name for run in record.runs] == loads
    assert record.about["interrupted"] == ("at 1 concurrent" if hanging == 5 else "at 2 concurrent")
    assert record.figures(record.loads()[0]).complete == (2 if hanging == 5 else 3)
    assert page(record) and table_lines(record)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate=x"], "--rate"),
        (["--goodput=x"], "--goodput"),
        (["--workload=x"], "there are single, batch"),
        (["--prompts=/no/such/file"], "--prompts"),
        (["--json=/no/such/folder/a.json"], "--json"),
        (["--html=/no/such/folder/a.html"], "--html"),
        (["--svg=/no/such/folder/plots"], "cannot make the folder --svg"),
        (["--workload=single", "--prompts=x"], "exclude"),
    ],
)
def test_wrong_flags_are_named(arguments: list[str], words: str):
    with pytest.raises(UsageError, match=words):
        plan(*arguments)


@pytest.mark.parametrize(
    ("line", "api", "other"),
    [
        ('{"messages": [{"role": "user", "content": "a"}]}', "completions", "chat"),
        ('{"token_ids": [1]}', "chat", "completions"),
    ],
)
def test_prompts_that_a_method_cannot_take(tmp_path: Path, line: str, api: str, other: str):
    (tmp_path / "prompts").write_text(line)
    with pytest.raises(UsageError, match="cannot take"):
        plan("--url=http://a", f"--api={api}", f"--prompts={tmp_path / 'prompts'}")
    plan("--url=http://a", f"--api={other}", f"--prompts={tmp_path / 'prompts'}")
    plan(f"--api={api}", f"--prompts={tmp_path / 'prompts'}")
