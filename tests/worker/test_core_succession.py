"""A worker that outlives its engine core: what it drops, what it keeps, and which core it serves next."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc import transport
from pagewire.ipc.columns import pack_u32, unpack_u32
from tests.patience import PATIENCE_S
from tests.worker.fakes import initialize, resolved_params
from tests.worker.test_main import Core, WorkerThread, core

Checkpoints = Callable[..., Path]
__all__ = ["core"]
PROMPT = [5, 6, 7, 8, 9]


def plan(number: int) -> worker_pb2.StepPlan:
    """Begins row 0, and samples a token."""
    new = worker_pb2.NewRow(
        row=0, token_ids=pack_u32(PROMPT), prompt_len=5, blocks=pack_u32([0, 1]), sampling=resolved_params()
    )
    row = pack_u32([0])
    return worker_pb2.StepPlan(
        step=number,
        new_rows=[new],
        rows=row,
        starts=pack_u32([0]),
        counts=pack_u32([5]),
        sample_rows=row,
        sample_sources=row,
    )


def next_token(number: int) -> worker_pb2.StepPlan:
    """Goes on with row 0."""
    row = pack_u32([0])
    start = pack_u32([len(PROMPT) + number - 2])
    return worker_pb2.StepPlan(
        step=number, rows=row, starts=start, counts=pack_u32([1]), sample_rows=row, sample_sources=row
    )


def succeed(core: Core) -> None:
    """The core dies when all that it sent is on its way, and the next one binds its address."""
    core.socket.close(linger=int(PATIENCE_S * 1000))
    while transport._is_served(core.address):  # closed by a thread of ZeroMQ
        time.sleep(0.001)
    core.socket, core.peer = transport.bind_router(core.context, core.address), b""


@pytest.fixture
def worker(core: Core) -> Iterator[WorkerThread]:
    made = WorkerThread(core.address, outlives_core=True)
    yield made
    core.send(shutdown=worker_pb2.Shutdown())
    assert made.join() == 0


def settings(model: Path, block_size: int = 4, secret: bytes = b"secret") -> worker_pb2.Initialize:
    return initialize(
        model,
        device="simulated",
        profile="cpu",
        gpu_memory_utilization=0.5,
        block_size=block_size,
        num_blocks=16,
        cache_secret=secret,
    )


def load(core: Core, model: Path, secret: bytes = b"secret") -> worker_pb2.Ready:
    assert core.receive().HasField("hello")
    core.send(initialize=settings(model, secret=secret))
    message = core.receive_after_progress()
    assert message.HasField("ready"), message
    return message.ready


def test_one_core_after_another(core: Core, worker: WorkerThread, checkpoint: Checkpoints) -> None:
    """Three cores with the same settings: rows of the last one are gone, steps in flight are finished, and
    tokens are the same."""
    model = checkpoint("llama")
    ready, tokens = load(core, model), set()
    for _ in range(3):
        core.send(step_plan=plan(1))
        result = core.receive().step_result
        tokens.add(tuple(unpack_u32(result.token_ids)))
        for number in (2, 3):
            core.send(step_plan=next_token(number))
        succeed(core)
        again = load(core, model)
        again.ClearField("kept_cache")
        assert again == ready
    assert len(tokens) == 1


def test_the_next_core_is_told_what_blocks_hold(
    core: Core, worker: WorkerThread, checkpoint: Checkpoints
) -> None:
    """Made from the first core's secret, by plans whose results no core has read; and each is told once."""
    model = checkpoint("llama")
    assert not load(core, model, secret=b"first").HasField("kept_cache")
    first = plan(1)
    first.kept_changes.kept_blocks, first.kept_changes.kept_contents = pack_u32([0]), b"a" * 16
    first.kept_changes.kept_checkpoints = pack_u32([1])
    first.kept_changes.kept_checkpoint_contents = b"c" * 16
    core.send(step_plan=first)
    core.send(
        kept_changes=worker_pb2.KeptChanges(kept_blocks=pack_u32([3]), kept_contents=b"b" * 16),
    )
    succeed(core)
    kept = load(core, model, secret=b"second").kept_cache
    assert (kept.secret, unpack_u32(kept.blocks), kept.contents) == (b"first", [0, 3], b"a" * 16 + b"b" * 16)
    assert (unpack_u32(kept.checkpoints), kept.checkpoint_contents) == ([1], b"c" * 16)
    succeed(core)
    kept = load(core, model, secret=b"third").kept_cache
    assert kept.secret == b"first" and not kept.blocks and not kept.contents


def test_a_core_with_other_settings_is_refused(core: Core, checkpoint: Checkpoints) -> None:
    """Its supervisor ends it then."""
    model = checkpoint("llama")
    worker = WorkerThread(core.address, outlives_core=True)
    load(core, model)
    succeed(core)
    core.receive()
    core.send(initialize=settings(model, block_size=8))
    failed = core.receive().failed
    assert failed.what == "the worker cannot be adopted" and "other settings" in failed.why
    assert worker.join() == 1


def test_without_the_flag_it_ends_with_its_core(core: Core, checkpoint: Checkpoints) -> None:
    worker = WorkerThread(core.address)
    load(core, checkpoint("llama"))
    core.socket.close(linger=0)
    assert worker.join() == 1
