"""Processes that read prompts: the same as in a thread, within limits."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from frontend.errors import ContextLengthExceeded, InternalError, InvalidRequest, ServiceError
from frontend.model.info import load_model
from frontend.prompts import process as reader_main
from frontend.prompts import prompt_reader as prompts_module
from frontend.prompts.process_pool import PromptProcesses
from frontend.prompts.prompt_reader import PromptReader
from frontend.validation.rules import Limits
from pagewire.config import FrontendConfig
from pagewire.host import spawn as process
from pagewire.host import standby
from pagewire.internal.v1 import reader_pb2
from pagewire.v1 import prompt_pb2
from tests.patience import PATIENCE_S, soon

LONG = "some words é " * 8000
PROMPTS = {
    "text": {"text": LONG},
    "truncated": {"text": LONG, "truncate_to": 20},
    "ids": {"token_ids": {"ids": [7, 8] * 20_000}},
    "chat": {"chat": {"messages": [{"role": "user", "content": [{"text": "a<|end|>" * 12_000}]}]}},
}


@pytest.fixture
async def readers(checkpoint):
    made = PromptProcesses(FrontendConfig(model=str(checkpoint), tokenizer_threads=1))
    yield made
    pids = [running._child.pid for running in made._idle]
    await made.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.fixture
async def pair(model, readers):
    """(in a thread, in processes when large)"""
    here = PromptReader(model.tokenizer, model.chat_template, 1)
    there = PromptReader(model.tokenizer, model.chat_template, 1, readers)
    yield here, there
    await here.close()
    await there.close()


async def test_a_process_reads_what_a_thread_reads(pair, readers):
    here, there = pair
    for fields in PROMPTS.values():
        prompt = prompt_pb2.Prompt(**fields)
        expected = await here.read(prompt, "prompt", vocab_size=512)
        found = await there.read(prompt, "prompt", vocab_size=512)
        assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
        assert found.num_truncated == expected.num_truncated
        assert (found.num_truncated > 0) == ("truncate_to" in fields)
    with_offsets = [
        await reader.read(prompt_pb2.Prompt(text=LONG), "prompt", vocab_size=512, offsets=True)
        for reader in pair
    ]
    assert list(with_offsets[0].offsets) == list(with_offsets[1].offsets) != []
    for name in ("read_words", "read_continuations"):
        words = ["word", "é" * 50_000]
        assert await getattr(here, name)(words) == await getattr(there, name)(words)
    assert len(readers._idle) == 1, "one process did all of it"


async def test_small_prompts_need_no_process(pair, readers):
    _, there = pair
    await there.read(prompt_pb2.Prompt(text="hi"), "prompt", vocab_size=512)
    assert not readers._idle


async def test_errors_are_those_of_a_thread(pair):
    cases = [
        (prompt_pb2.Prompt(token_ids={"ids": [512] * 40_000}), {}),
        (prompt_pb2.Prompt(text=LONG), {"max_model_len": 16}),
        (prompt_pb2.Prompt(token_ids={"ids": [5] * 40_000}), {"offsets": True}),
        (prompt_pb2.Prompt(text="a" * (3 << 20)), {}),
    ]
    for prompt, options in cases:
        errors = []
        for reader in pair:
            with pytest.raises(ServiceError) as caught:
                await reader.read(prompt, "prompts[3]", vocab_size=512, **options)
            errors.append(caught.value)
        here, there = errors
        for name in ("code", "reason", "message", "violations", "metadata"):
            assert getattr(here, name) == getattr(there, name)
    assert isinstance(errors[0], InvalidRequest)
    with pytest.raises(ContextLengthExceeded):
        await pair[1].read_for_generation(
            prompt_pb2.Prompt(text="a b " * 30_000, truncate_to=600),
            "prompt",
            Limits(512, 500, frozenset(), 1, 1),
        )


def limited(monkeypatch, checkpoint, **limits):
    """PromptProcesses whose processes have other limits."""
    lines = [
        "from frontend.prompts import process as reader_main",
        "from pagewire.config import FrontendConfig",
    ]
    lines += [f"reader_main.{name} = {value}" for name, value in limits.items()]
    lines += [f"reader_main.run(FrontendConfig(model={str(checkpoint)!r}))"]
    monkeypatch.setattr(process, "command", lambda arguments: [sys.executable, "-c", "\n".join(lines)])


@contextlib.contextmanager
def forking(checkpoint, **limits):
    """What forks processes of a model that was read once. limits: other ones of theirs."""
    program = [
        "import sys",
        "from frontend.model.info import load_model",
        "from frontend.prompts import process as reader_main",
        "from pagewire.config import FrontendConfig",
        "from pagewire.host.spawn import Status",
        "from pagewire.host.standby import serve_forks",
        *(f"reader_main.{name} = {value}" for name, value in limits.items()),
        f"config = FrontendConfig(model={str(checkpoint)!r}, log_level='warning')",
        "model = load_model(config)",
        "serve_forks(Status())",
        "sys.exit(reader_main.serve(config, model))",
    ]
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = subprocess.Popen([sys.executable, "-c", "\n".join(program)], stdin=theirs)
    theirs.close()
    try:
        yield partial(standby.fork, made.pid, orders)
    finally:
        orders.close()  # which ends it
        assert made.wait(PATIENCE_S) == 0


async def test_a_forked_process_reads_what_a_thread_reads(model, checkpoint, monkeypatch):
    """As one that was started: also after it was killed, and it ends with its frontend."""
    monkeypatch.setattr(standby, "PATIENCE_S", PATIENCE_S)
    here = PromptReader(model.tokenizer, model.chat_template, 1)
    with forking(checkpoint) as fork:
        processes = PromptProcesses(FrontendConfig(model=str(checkpoint), tokenizer_threads=1), fork)
        there, pids = PromptReader(model.tokenizer, model.chat_template, 1, processes), []
        for fields in PROMPTS.values():
            prompt = prompt_pb2.Prompt(**fields)
            expected = await here.read(prompt, "prompt", vocab_size=512)
            assert (await there.read(prompt, "prompt", vocab_size=512)).token_ids == expected.token_ids
            (idle,) = processes._idle
            assert "reader_main.serve" in Path(f"/proc/{idle._child.pid}/cmdline").read_text()
            pids.append(idle._child.pid)
            idle._child.kill()
            assert await idle.ended() == -signal.SIGKILL
        assert len({*pids}) == len(PROMPTS)
        await there.read(prompt, "prompt", vocab_size=512)
        await there.close()
        await here.close()
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


async def test_a_forked_process_has_the_same_limits(model, checkpoint, monkeypatch):
    monkeypatch.setattr(standby, "PATIENCE_S", PATIENCE_S)
    with forking(checkpoint, CPU_LIMIT=0.01) as fork:
        processes = PromptProcesses(FrontendConfig(model=str(checkpoint), tokenizer_threads=1), fork)
        there = PromptReader(model.tokenizer, model.chat_template, 1, processes)
        with pytest.raises(InvalidRequest, match="prompts.1.: takes too much time to tokenize"):
            await there.read(prompt_pb2.Prompt(text="word " * 400_000), "prompts[1]", vocab_size=512)
        await there.close()


async def test_where_none_can_be_forked_a_process_is_started(model, checkpoint):
    def fork(arguments, stdin):
        raise OSError("the standby does not fork")

    processes = PromptProcesses(FrontendConfig(model=str(checkpoint), tokenizer_threads=1), fork)
    there = PromptReader(model.tokenizer, model.chat_template, 1, processes)
    assert (await there.read(prompt_pb2.Prompt(text=LONG), "prompt", vocab_size=512)).text == LONG
    await there.close()


async def test_too_much_time_ends_the_request_alone(pair, readers, monkeypatch, checkpoint):
    _, there = pair
    limited(monkeypatch, checkpoint, CPU_LIMIT=0.01)
    with pytest.raises(InvalidRequest, match="prompts.1.: takes too much time to tokenize"):
        await there.read(prompt_pb2.Prompt(text="word " * 400_000), "prompts[1]", vocab_size=512)
    limited(monkeypatch, checkpoint, CPU_LIMIT=60)
    read = await there.read(prompt_pb2.Prompt(text=LONG), "prompt", vocab_size=512)
    assert len(read.token_ids) > 8000


async def test_too_much_memory_ends_the_request_alone(pair, monkeypatch, checkpoint):
    _, there = pair
    limited(monkeypatch, checkpoint, MEMORY=8 << 20)
    with pytest.raises(InvalidRequest, match="prompt: takes too much memory"):
        await there.read(prompt_pb2.Prompt(text="word " * 400_000), "prompt", vocab_size=512)


async def test_a_reader_that_cannot_start_is_our_fault(pair, monkeypatch):
    _, there = pair
    monkeypatch.setattr(process, "command", lambda arguments: [sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(InternalError):
        await there.read(prompt_pb2.Prompt(text=LONG), "prompt", vocab_size=512)


async def test_a_reader_that_does_not_answer_is_killed(pair, monkeypatch):
    _, there = pair
    monkeypatch.setattr("frontend.prompts.process_pool.WALL_LIMIT", 0.2)
    monkeypatch.setattr(
        process, "command", lambda arguments: [sys.executable, "-c", "import signal; signal.pause()"]
    )
    with pytest.raises(InvalidRequest, match="too much memory or time"):
        await there.read(prompt_pb2.Prompt(text=LONG), "prompt", vocab_size=512)


async def test_a_client_that_goes_away_does_not_take_the_process_with_it(pair, readers):
    _, there = pair
    await there.read(prompt_pb2.Prompt(text=LONG), "prompt", vocab_size=512)
    (process_before,) = readers._idle
    job = asyncio.create_task(there.read(prompt_pb2.Prompt(text=LONG), "prompt", vocab_size=512))
    while not readers._jobs.running:
        await asyncio.sleep(0)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    await asyncio.gather(*readers._jobs.running)
    assert readers._idle == [process_before]
    read = await there.read(prompt_pb2.Prompt(text="b" * 70_000), "prompt", vocab_size=512)
    assert read.text == "b" * 70_000


async def test_a_client_that_goes_away_before_its_turn_leaves_no_job_behind(readers, monkeypatch):
    ask = asyncio.Event()
    num_asked = 0

    async def hold(*_: object) -> None:
        nonlocal num_asked
        num_asked += 1
        await ask.wait()
        raise asyncio.IncompleteReadError(b"", None)

    monkeypatch.setattr("frontend.prompts.process_pool._Process.ask", hold)
    request = reader_pb2.ReadRequest(words=reader_pb2.Texts(texts=["x"]))
    jobs = [asyncio.create_task(readers.ask(request, "sampling.bad_words")) for _ in range(20)]
    while not num_asked:
        await asyncio.sleep(0.005)
    assert len(readers._jobs.running) == 1, "the others wait for their turn"
    for job in jobs:
        job.cancel()
    await asyncio.wait(jobs)
    ask.set()
    await asyncio.wait(readers._jobs.running)
    assert num_asked == 1
    await soon(readers._jobs.turns.begin(None))  # the turn is free again


async def test_an_idle_process_that_was_killed_fails_no_request(pair, readers):
    _, there = pair
    await there.read(prompt_pb2.Prompt(text=LONG), "prompt", vocab_size=512)
    (idle,) = readers._idle
    idle._child.kill()
    await idle.ended()
    read = await there.read(prompt_pb2.Prompt(text=LONG), "prompt", vocab_size=512)
    assert read.text == LONG
    assert len(readers._idle) == 1 and readers._idle != [idle]


async def test_a_tokenizer_that_occupies_a_thread_suspends_threads_for_a_while(pair, readers, monkeypatch):
    """As one whose regular expression is slow on a few bytes. Threads come back, later each time."""
    _, there = pair
    monkeypatch.setattr(prompts_module, "PATIENCE", 0.05)
    now, release = 0.0, threading.Event()
    there._clock = lambda: now
    monkeypatch.setattr(there._encoder, "read", lambda *_, **__: release.wait(PATIENCE_S))
    read = await there.read(prompt_pb2.Prompt(text="hi"), "prompt", vocab_size=512)
    assert read.text == "hi" and len(readers._idle) == 1
    assert await there.run(lambda: 1, None, 1) == 1, "the pool has a thread again"
    assert not there._uses_threads
    now += prompts_module.SUSPENSION
    assert there._uses_threads
    await there.read(prompt_pb2.Prompt(text="hi"), "prompt", vocab_size=512)
    now += prompts_module.SUSPENSION
    assert not there._uses_threads, "the second suspension is twice as long"
    now += prompts_module.SUSPENSION
    assert there._uses_threads
    release.set()


async def test_waiting_for_a_thread_does_not_suspend_threads(pair, readers, monkeypatch):
    _, there = pair
    release = threading.Event()
    # A large answer, say, has its only thread.
    busy = asyncio.create_task(there.run(lambda: release.wait(PATIENCE_S), None, 1))
    monkeypatch.setattr(prompts_module, "PATIENCE", 0.01)
    small = asyncio.create_task(there.read(prompt_pb2.Prompt(text="hi"), "prompt", vocab_size=512))
    await asyncio.sleep(0.1)
    assert not small.done() and there._uses_threads

    def submit(function):  # on a busy machine a thread begins later than it is waited for
        done = Future()
        done.set_result(function())
        return done

    monkeypatch.setattr(there._pool, "submit", submit)
    release.set()
    assert (await small).text == "hi" and await busy
    assert not readers._idle


async def test_prompts_that_wait_behind_a_lost_thread_go_to_a_process(pair, readers, monkeypatch):
    _, there = pair
    monkeypatch.setattr(prompts_module, "PATIENCE", 0.05)
    release = threading.Event()
    monkeypatch.setattr(there._encoder, "read", lambda *_, **__: release.wait(PATIENCE_S))
    prompts = [prompt_pb2.Prompt(text=f"hi {place}") for place in range(3)]
    reads = await asyncio.gather(*(there.read(prompt, "prompt", vocab_size=512) for prompt in prompts))
    assert [read.text for read in reads] == [prompt.text for prompt in prompts]
    release.set()


def test_limits_leave_room_for_the_largest_prompt(model, checkpoint):
    """What a reader may take is more than the largest text needs."""
    assert reader_main.MEMORY > 150 * (2 << 20)


async def test_pairs_are_read_as_in_a_thread(checkpoint, tmp_path):
    """Processes know what their frontend has been told of the model."""
    path = tmp_path / "pair.jinja"
    path.write_text("question: {{ query }}\npassage: {{ document }}")
    config = FrontendConfig(
        model=str(checkpoint), score_template=str(path), score_tokens="y,n", tokenizer_threads=1
    )
    model, processes = load_model(config), PromptProcesses(config)
    assert model.scoring is not None
    template = model.scoring.template
    here = PromptReader(model.tokenizer, model.chat_template, 1, pair_template=template)
    there = PromptReader(model.tokenizer, model.chat_template, 1, processes, pair_template=template)
    found = []
    for document in (LONG, "short"):
        pair = reader_pb2.ReadPair(query="q", path="documents[0]", max_model_len=1 << 20)
        pair.document.text = document
        found += [await each.read_pair(pair) for each in (here, there)]
    assert len(processes._idle) == 1, "the long one was read there"
    assert found[0].token_ids == found[1].token_ids and found[2].token_ids == found[3].token_ids
    for each in (here, there, processes):
        await each.close()


def test_processes_have_all_that_reading_a_model_depends_on(checkpoint):
    """A flag that load_model() reads and a process lacks would give other prompts there."""
    texts = "tokenizer", "hf_overrides", "chat_template", "pooling_type", "score_template", "score_tokens"
    config = FrontendConfig(model=str(checkpoint), **{name: f"some-{name}" for name in texts})
    arguments = PromptProcesses(config)._arguments
    for name in texts:
        assert f"--{name.replace('_', '-')}=some-{name}" in arguments
