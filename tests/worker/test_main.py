"""The worker process and its conversation with the core."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from pagewire.ipc.transport import bind_router, pack, unpack, workers_address
from tests.patience import PATIENCE_S
from tests.worker.fakes import initialize, resolved_params
from worker import main

Checkpoints = Callable[..., Path]
ROOT = Path(__file__).parents[2]
WAIT_MS = int(1000 * PATIENCE_S)


class Core:
    """The core's end of the connection."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.address = workers_address(folder)
        self.socket = bind_router(self.context, self.address)
        self.peer = b""

    def receive(self) -> worker_pb2.WorkerMessage:
        """Returns the next message of the connection that said hello last. Others are dropped, as by a core:
        after the end of a core, its worker's results may still come over the old connection, which ZeroMQ
        has renewed, before or after the hello of the new one."""
        while True:
            assert self.socket.poll(WAIT_MS), "the worker says nothing"
            peer, frame = self.socket.recv_multipart()
            message = worker_pb2.WorkerMessage.FromString(unpack(frame))
            if message.HasField("hello"):
                self.peer = peer
            if peer == self.peer:
                return message

    def receive_after_progress(self) -> worker_pb2.WorkerMessage:
        while True:
            message = self.receive()
            if message.WhichOneof("message") != "load_progress":
                return message
            assert 0 <= message.load_progress.fraction <= 1

    def send(self, **command: object) -> None:
        self.send_frame(pack(worker_pb2.WorkerCommand(**command)))  # type: ignore[arg-type]

    def send_frame(self, frame: bytes) -> None:
        self.socket.send_multipart([self.peer, frame])

    def close(self) -> None:
        self.socket.close(linger=0)
        self.context.destroy(linger=0)


@pytest.fixture
def core() -> Iterator[Core]:
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as folder:
        core = Core(Path(folder))
        yield core
        core.close()


class WorkerThread:
    """A worker in a thread of this process: signals are not its own, all else is."""

    def __init__(self, address: str, **flags: Any) -> None:
        self.code: int | None = None
        config = WorkerConfig(engine=address, threads=1, **flags)
        # A worker that outlives its cores waits for the next one: where a test has failed, for ever.
        self._thread = threading.Thread(target=self._run, args=(config,), daemon=True)
        self._thread.start()

    def _run(self, config: WorkerConfig) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        channel = main.Channel(context, config.engine)
        self.code = main._serve(channel, config)
        channel.close(main.FAREWELL_MS)
        context.term()

    def join(self) -> int | None:
        self._thread.join(PATIENCE_S)
        return self.code


def one_step(number: int) -> worker_pb2.StepPlan:
    """A prompt of three tokens, one sampled."""
    new = worker_pb2.NewRow(
        row=0,
        token_ids=pack_u32([5, 6, 7]),
        prompt_len=3,
        blocks=pack_u32([0]),
        sampling=resolved_params(),
    )
    zero = pack_u32([0])
    return worker_pb2.StepPlan(
        step=number,
        new_rows=[new],
        rows=zero,
        starts=zero,
        counts=pack_u32([3]),
        sample_rows=zero,
        sample_sources=zero,
    )


def test_a_conversation(core: Core, checkpoint: Checkpoints):
    worker = WorkerThread(core.address)
    hello = core.receive().hello
    assert hello.pid == os.getpid()
    assert hello.version
    core.send_frame(b"\x63 another version")
    core.send_frame(b"")
    core.send_frame(b"\x01\xff\xff")
    core.send(initialize=initialize(checkpoint("llama"), max_model_len=50))
    ready = core.receive_after_progress().ready
    assert ready.model.architecture == "LlamaForCausalLM"
    assert ready.model.dtype == "float32"
    assert (ready.model.vocab_size, ready.model.max_model_len) == (320, 50)
    assert list(ready.model.eos_token_ids) == [2]
    assert ready.num_blocks == 600
    assert ready.kv_cache_bytes > 600 * 4 * 2 * 3
    assert ready.model.weight_bytes > 0
    assert ready.device == "cpu"
    core.send(step_plan=one_step(41))
    result = core.receive().step_result
    assert result.step == 41
    assert len(unpack_u32(result.token_ids)) == 1
    core.send(shutdown=worker_pb2.Shutdown())
    assert worker.join() == 0


def test_a_model_that_cannot_be_loaded(core: Core, checkpoint: Checkpoints, tmp_path: Path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((checkpoint("llama") / name).read_bytes()[:-10])
    worker = WorkerThread(core.address)
    core.receive()
    core.send(initialize=initialize(tmp_path))
    failed = core.receive_after_progress().failed
    assert failed.type == "StartupError"
    assert failed.what == "cannot load the model's configuration"
    assert failed.why.startswith("config.json is not readable JSON")
    assert "Traceback" in failed.traceback
    assert worker.join() == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": "cuda"}, "CUDA"),
        (
            {"tensor_parallel_size": 2},
            "attention.output, with 48 inputs, is a sum of 1 leaf, which cannot be divided among 2 ranks",
        ),
        ({"max_model_len": 257}, "max_model_len = 257, but the model goes to 256"),
        ({"num_blocks": 1 << 31}, "MiB are available"),
    ],
)
def test_what_is_refused(core: Core, checkpoint: Checkpoints, changes: dict[str, object], why: str):
    worker = WorkerThread(core.address)
    core.receive()
    core.send(initialize=initialize(checkpoint("llama"), **changes))
    failed = core.receive_after_progress().failed
    assert why in failed.why
    assert failed.todo
    assert worker.join() == 1


def test_a_real_device_without_torch(core: Core, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """The core tells the user which extra is missing."""
    monkeypatch.delitem(sys.modules, "worker.platforms.cpu", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    worker = WorkerThread(core.address)
    core.receive()
    core.send(initialize=initialize(checkpoint("llama")))
    failed = core.receive().failed
    assert (failed.why, failed.todo) == (
        "torch is not installed",
        "in pagewire's source tree: pip install '.[serve]'",
    )
    assert worker.join() == 1


def test_a_simulated_device(core: Core, checkpoint: Checkpoints):
    """The same conversation, without weights and without torch."""
    worker = WorkerThread(core.address)
    core.receive()
    simulated = {"device": "simulated", "profile": "instant", "gpu_memory_utilization": 0.9}
    core.send(initialize=initialize(checkpoint("llama"), **simulated))
    ready = core.receive().ready
    assert (ready.device, ready.model.dtype, ready.num_blocks) == ("simulated", "float32", 600)
    core.send(step_plan=one_step(41))
    result = core.receive().step_result
    assert result.step == 41
    assert len(unpack_u32(result.token_ids)) == 1
    core.send(shutdown=worker_pb2.Shutdown())
    assert worker.join() == 0


@pytest.mark.parametrize(
    "fault",
    [
        {"fault_die_at_step": 1},
        {"fault_hang_at_step": 1},
        {"fault_hold_gil_at_step": 1},
        {"fault_slow_factor": 2.0},
        {"fault_die_on_token": 0},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_a_gpu_does_not_fail_on_purpose(core: Core, checkpoint: Checkpoints, fault: dict[str, float]):
    worker = WorkerThread(core.address, **fault)
    core.receive()
    core.send(initialize=initialize(checkpoint("llama"), device="cuda"))
    assert core.receive().failed.why == "a GPU does not fail on purpose"
    assert worker.join() == 1


@pytest.mark.parametrize("fault", ["--fault-die-on-token=6", "--fault-die-at-step=1"])
def test_a_cpu_dies_on_purpose(core: Core, checkpoint: Checkpoints, fault: str):
    code = (
        "import sys; from pagewire import flags; from pagewire.config import WorkerConfig as C; "
        "from worker.main import run; run(flags.parse(C, sys.argv[1:], command='worker'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"--engine={core.address}", "--log-level=error", fault], cwd=ROOT
    )
    core.receive()
    core.send(initialize=initialize(checkpoint("llama")))
    assert core.receive_after_progress().ready.num_blocks
    core.send(step_plan=one_step(1))
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_cpu_is_slow_on_purpose(core: Core, checkpoint: Checkpoints):
    worker = WorkerThread(core.address, fault_slow_factor=20.0)
    core.receive()
    core.send(initialize=initialize(checkpoint("llama")))
    core.receive_after_progress()
    began = time.monotonic()
    core.send(step_plan=one_step(1))
    seconds = core.receive().step_result.duration_us / 1e6
    assert 0 < seconds <= time.monotonic() - began
    core.send(shutdown=worker_pb2.Shutdown())
    assert worker.join() == 0


def test_a_plan_that_does_not_fit_ends_the_worker(core: Core, checkpoint: Checkpoints):
    worker = WorkerThread(core.address)
    core.receive()
    core.send(initialize=initialize(checkpoint("llama")))
    core.receive_after_progress()
    core.send(step_plan=worker_pb2.StepPlan(removed_rows=pack_u32([3])))
    failed = core.receive().failed
    assert failed.type == "PlanError"
    assert failed.why == "PlanError: row 3 is not in use"
    assert worker.join() == 1


def test_shutdown_before_anything_is_loaded(core: Core):
    worker = WorkerThread(core.address)
    core.receive()
    core.send(step_plan=worker_pb2.StepPlan())  # of an earlier worker: nothing to do with this one
    core.send(shutdown=worker_pb2.Shutdown())
    assert worker.join() == 0


def test_the_worker_ends_when_the_core_is_gone(core: Core):
    worker = WorkerThread(core.address)
    core.receive()
    core.close()
    assert worker.join() == 1


@pytest.mark.parametrize("address", ["", "tcp://127.0.0.1:5", "ipc:///tmp/" + 120 * "x"])
def test_an_address_that_is_none(address: str):
    code = (
        "from pagewire.config import WorkerConfig as C; from worker.main import run; "
        f"run(C(engine={address!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stderr.splitlines()[-1].startswith("pagewire.errors.StartupError: cannot use this address")


def test_signals_end_it_quietly(core: Core, checkpoint: Checkpoints):
    """SIGTERM while it waits for the core, and while it waits for steps."""
    code = (
        "import sys; from pagewire.config import WorkerConfig as C; from worker.main import run; "
        f"sys.exit(run(C(engine={core.address!r}, threads=1)))"
    )
    for load in (False, True):
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert core.receive().hello.pid == process.pid
        if load:
            core.send(initialize=initialize(checkpoint("llama")))
            assert core.receive_after_progress().ready.num_blocks == 600
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, output) == (0, b"")


def test_it_says_hello_before_it_imports_torch():
    """So that a wrong address is told at once, and a slow start is seen to be one."""
    code = "import sys, worker.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE_S).returncode == 0


def test_a_standby_tidies_up_before_streams_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full collection over all that torch has made takes 0.1 s, and a load has two of them; and what waits
    holds no memory that imports alone needed."""
    calls: list[str] = []
    monkeypatch.setattr(main, "freeze_imports", lambda: calls.append("freeze"))
    monkeypatch.setattr(main, "give_back_freed_memory", lambda: calls.append("trim"))
    monkeypatch.setattr(main, "drop_library_pages", lambda: calls.append("drop"))
    monkeypatch.setattr(main, "select_instruction_set", lambda name: calls.append(name))
    main._import_ahead("auto")
    assert calls == ["auto", "freeze", "trim", "drop"]
