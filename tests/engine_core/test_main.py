"""The engine core as a process, with a fake worker as another, and frontends on real sockets."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine_core.main import describe_last_steps
from engine_core.request import FinishReason
from pagewire.internal.v1.engine_pb2 import Abort, AddRequest, GetLoad, Hello, Utility
from pagewire.ipc import transport
from pagewire.v1.admin_pb2 import RankLoad
from tests.engine_core.fakes import Ledger, add_request, expected_output
from tests.engine_core.processes import PATIENCE_S, FakeFrontend, python
from tests.engine_core.world import World

Context = zmq.Context[zmq.Socket[bytes]]


class Engine:
    """The process, and what it writes to its status pipe and to standard error."""

    def __init__(self, folder: Path, **options: object) -> None:
        (folder / "model").mkdir(exist_ok=True)
        (folder / "model" / "config.json").write_text("{}")
        self.folder = folder
        self.address = transport.frontends_address(folder)
        self._errors = (folder / "stderr").open("w+b")
        self._status, writing = os.pipe()
        self.process: subprocess.Popen[bytes] = python(
            "tests.engine_core.engine_process",
            str(folder),
            json.dumps({"block_size": 4, "num_blocks": 64, **options}),
            env={"PAGEWIRE_STATUS_FD": str(writing)},
            pass_fds=(writing,),
            stdin=subprocess.PIPE,
            stderr=self._errors,
        )
        os.close(writing)
        self.events: list[dict[str, object]] = []

    def wait_for(self, event: str) -> dict[str, object]:
        """Waits for an event on the status pipe."""
        data = b""
        while True:
            data += os.read(self._status, 1)
            if not data:
                raise AssertionError("it ended: " + self.errors())
            if data.endswith(b"\n"):
                self.events.append(json.loads(data))
                data = b""
                if self.events[-1]["event"] == event:
                    return self.events[-1]

    def errors(self) -> str:
        """Standard error so far."""
        return (self.folder / "stderr").read_text()

    def children(self) -> list[int]:
        """Process ids of its children."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return [int(pid) for pid in Path(path).read_text().split()]

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Ends it, in any state."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._errors.close()
        os.close(self._status)


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    made = Engine(folder)
    made.wait_for("ready")
    yield made
    made.close()


@pytest.fixture
def slow_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A request without a limit lasts for a minute here: longer than any test."""
    monkeypatch.setenv("FAKE_WORKER_STEP_S", "0.25")
    made = Engine(folder)
    made.wait_for("ready")
    yield made
    made.close()


def endless(handle: int) -> AddRequest:
    """A request that ends only by the context length."""
    return add_request(handle, max_tokens=100_000, ignore_eos=True)


def follow(frontend: FakeFrontend, ledger: Ledger, handle: int, index: int = 0) -> FinishReason:
    """Takes outputs until a sequence has ended."""
    while (handle, index) not in ledger.ends:
        ledger.take(frontend.receive().step_outputs)
    return ledger.ends[handle, index]


def load(frontend: FakeFrontend) -> RankLoad:
    """Requests the load."""
    frontend.send(utility=Utility(call_id=1, get_load=GetLoad()))
    while True:
        message = frontend.receive()
        if message.HasField("utility_result"):
            return message.utility_result.load.load


def wait_until_idle(frontend: FakeFrontend) -> None:
    """Every answer comes from a turn of the step loop, so this waits for turns, not for time."""
    while (now := load(frontend)).running_requests or now.kv_used_tokens or now.waiting_requests:
        pass


def test_hello_and_generate(engine: Engine, context: Context) -> None:
    said = [event for event in engine.events if event["event"] != "beat"]
    assert said[0] == {"event": "loading", "what": "weights", "fraction": 0.5}
    assert engine.events[-1]["num_blocks"] == 64
    with FakeFrontend(context, engine.address) as frontend:
        welcome = frontend.hello().welcome
        assert welcome.model.max_model_len == 256, "64 blocks of 4"
        frontend.send(hello=Hello(known_epoch=welcome.epoch))
        assert frontend.receive().load.epoch == welcome.epoch
        ledger = Ledger()
        message = add_request(1, prompt=9, n=3, max_tokens=20)
        frontend.send(add_request=message)
        for index in range(3):
            reason = follow(frontend, ledger, 1, index)
            assert (ledger.tokens[1, index], reason) == expected_output(message, index)


def test_an_abort_frees_what_a_request_held(slow_engine: Engine, context: Context) -> None:
    with FakeFrontend(context, slow_engine.address) as frontend:
        frontend.hello()
        frontend.send(add_request=endless(1))
        assert frontend.receive().step_outputs.token_ids
        assert load(frontend).kv_used_tokens
        frontend.send(abort=Abort(handle=1))
        frontend.send(abort=Abort(handle=1))
        wait_until_idle(frontend)


def test_garbage_does_no_harm(engine: Engine, context: Context) -> None:
    with FakeFrontend(context, engine.address) as frontend, FakeFrontend(context, engine.address) as rogue:
        frontend.hello()
        ledger = Ledger()
        frontend.send(add_request=add_request(1, max_tokens=200, ignore_eos=True))
        for number in range(200):
            rogue.socket.send_multipart([os.urandom(1 + number % 50)] * (1 + number % 3))
        assert follow(frontend, ledger, 1) is FinishReason.MAX_TOKENS


def test_a_frontend_that_vanishes_frees_its_blocks(slow_engine: Engine, context: Context) -> None:
    with FakeFrontend(context, slow_engine.address) as other:
        other.hello()
        with FakeFrontend(context, slow_engine.address) as frontend:
            frontend.hello()
            for handle in range(1, 5):
                frontend.send(add_request=endless(handle))
            while load(other).running_requests < 4:
                pass
        wait_until_idle(other)


def test_a_worker_that_is_killed_ends_every_request_and_the_core(
    slow_engine: Engine, context: Context
) -> None:
    with (
        FakeFrontend(context, slow_engine.address) as frontend,
        FakeFrontend(context, slow_engine.address) as other,
    ):
        for one, handle in ((frontend, 1), (other, 2)):
            welcome = one.hello().welcome
            one.send(add_request=endless(handle))
            while not one.receive().step_outputs.token_ids:
                pass
        (worker,) = slow_engine.children()
        os.kill(worker, signal.SIGKILL)
        for one, handle in ((frontend, 1), (other, 2)):
            message = one.receive()
            while not message.HasField("request_failed"):
                message = one.receive()
            failure = message.request_failed
            assert (failure.handle, failure.code, failure.reason) == (handle, 14, "ENGINE_DEAD")
            assert failure.epoch == welcome.epoch
    reason = slow_engine.wait_for("failed")  # for its supervisor, which says it once
    assert slow_engine.wait() == 1
    assert reason["what"] == f"the worker (pid {worker}) is gone"
    assert "killed by SIGKILL" in str(reason["why"])
    assert "Traceback" not in slow_engine.errors()
    assert not [*slow_engine.folder.glob("*.ipc")]


def test_an_idle_core_notices_the_death_of_its_worker(engine: Engine) -> None:
    """Without a request no message goes to the worker; the service must not look healthy."""
    (worker,) = engine.children()
    os.kill(worker, signal.SIGKILL)
    assert engine.wait() == 1
    assert "killed by SIGKILL" in str(engine.wait_for("failed")["why"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quietly(slow_engine: Engine, context: Context, number: signal.Signals) -> None:
    (worker,) = slow_engine.children()
    with FakeFrontend(context, slow_engine.address) as frontend:
        frontend.hello()
        frontend.send(add_request=endless(1))
        frontend.receive()
        slow_engine.process.send_signal(number)
        assert slow_engine.wait() == 0
    assert not [*slow_engine.folder.glob("*.ipc")], "the sockets' files are gone"
    assert not Path(f"/proc/{worker}").exists()
    assert "Traceback" not in slow_engine.errors()


def test_a_signal_ends_an_idle_core(engine: Engine) -> None:
    engine.process.terminate()
    assert engine.wait() == 0


def test_a_signal_while_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "hang-load")
    engine = Engine(folder)
    engine.wait_for("loading")
    engine.process.terminate()
    assert engine.wait() == 0
    engine.close()


def test_a_worker_that_cannot_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "fail-load")
    engine = Engine(folder)
    event = engine.wait_for("failed")
    assert (event["what"], event["why"], event["todo"]) == (
        "cannot load",
        "a tensor is missing",
        "look for it",
    )
    assert engine.wait() == 1
    assert not event["may_pass"]
    assert engine.errors().splitlines()[-1] == "error: cannot load: a tensor is missing"
    assert "Traceback" not in engine.errors()
    engine.close()


def test_a_worker_that_is_killed_while_it_loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next worker may load: a supervisor may try again."""
    monkeypatch.setenv("FAKE_WORKER", "die-load")
    engine = Engine(folder)
    event = engine.wait_for("failed")
    assert "killed by SIGKILL" in str(event["why"]) and event["may_pass"]
    assert engine.wait() == 1
    engine.close()


def test_an_unsupported_flag_is_refused_before_anything_starts(folder: Path) -> None:
    engine = Engine(folder, hang_timeout=0.1)
    assert "--hang-timeout" in str(engine.wait_for("failed")["why"])
    assert engine.wait() == 1
    engine.close()


def test_a_worker_of_two_ranks_serves(folder: Path, context: Context) -> None:
    engine = Engine(folder, pipeline_parallel_size=2)
    engine.wait_for("ready")
    with FakeFrontend(context, engine.address) as frontend:
        parallelism = frontend.hello().welcome.parallelism
        assert (parallelism.tensor, parallelism.pipeline) == (1, 2)
        message, ledger = add_request(1, max_tokens=5), Ledger()
        frontend.send(add_request=message)
        reason = follow(frontend, ledger, 1)
        assert (ledger.tokens[1, 0], reason) == expected_output(message, 0)
        assert len(engine.children()) == 2
    engine.close()


def test_frontends_that_were_there_first_are_welcomed(folder: Path, context: Context) -> None:
    """Processes start in any order."""
    with FakeFrontend(context, transport.frontends_address(folder)) as frontend:
        frontend.send(hello=Hello(frontend_id="early"))
        engine = Engine(folder)
        assert frontend.receive().welcome.epoch
        engine.close()


def test_the_requests_that_ran_are_named() -> None:
    world = World(rows=4, budget=8)
    assert describe_last_steps(world.scheduler) == ""
    world.add(1, 3, max_tokens=9, tenant="alice", request_id="alice/chat-1")
    world.add(2, 20, max_tokens=9, request_id="a] [request_id=b")
    world.add(3, 30, max_tokens=9, request_id="later")
    world.step()
    assert describe_last_steps(world.scheduler) == (
        "2 requests were in the last steps: [request_id=chat-1 tenant=alice] [request_id='a] [request_id=b']"
    )
    world.finish()


def test_not_all_of_many_are_named() -> None:
    world = World(rows=20, budget=64, blocks=128)
    for handle in range(1, 21):
        world.add(handle, 2, max_tokens=9)
    world.step()
    said = describe_last_steps(world.scheduler)
    assert said.startswith("20 requests") and said.endswith(" and 4 more") and said.count("request_id=") == 16
    world.finish()
