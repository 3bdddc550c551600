"""Hostile peers on the internal bus: whatever one of our sockets receives, no other peer is affected.

The seeds are few here; PAGEWIRE_HOSTILE_FRAMES makes them many.
"""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import pytest
import zmq

from engine_core.io.frontend_sockets import FrontendSockets
from engine_core.io.process_control import StopSignal
from engine_core.io.worker_group import WorkerGroup
from engine_core.step.plan import Plan
from engine_core.step.result import decode_result
from pagewire.config import WorkerConfig
from pagewire.internal.v1.engine_pb2 import AbortByIds, EngineMessage, FrontendMessage, Hello, Utility
from pagewire.internal.v1.worker_pb2 import Initialize, StepPlan, StepResult, WorkerCommand, WorkerMessage
from pagewire.ipc import transport
from pagewire.ipc.columns import pack_u32
from pagewire.local_service import Service
from pagewire_simulated.platform import SimulatedPlatform
from tests.e2e import services
from tests.engine_core.conftest import context, folder
from tests.engine_core.fakes import Ledger, add_request, expected_output
from tests.engine_core.house import House
from tests.engine_core.io.test_worker_group import INITIALIZE, one_step
from tests.engine_core.processes import FakeFrontend, spawn_fake_worker
from tests.hostile.bus_messages import bombs, column, frame_sets, frontend_message
from tests.hostile.messages import any_message
from tests.hostile.oracle import unharmed
from tests.worker.test_main import Core, WorkerThread, core
from tests.worker.test_main import one_step as a_plan
from worker.load import load

__all__ = ["context", "core", "folder"]

Context = zmq.Context[zmq.Socket[bytes]]
SETS = int(os.environ.get("PAGEWIRE_HOSTILE_FRAMES", "2000"))
"""Frame sets, or messages, per test."""
SIMULATED = Initialize(
    model_path=str(services.ROOT / "pagewire" / "demo_model"),
    device="simulated",
    profile="instant",
    max_num_seqs=4,
    max_num_batched_tokens=64,
    block_size=4,
    num_blocks=64,
    gpu_memory_utilization=0.9,
    tensor_parallel_size=1,
)
HONEST = range(1, 9)
"""Handles of honest requests."""


def honest_requests() -> list:
    """One after the other of them is in flight while others do what they want."""
    return [
        add_request(handle, 5 + handle, n=1 + handle % 3, max_tokens=20, request_id=f"honest-{handle}")
        for handle in HONEST
    ]


def check_honest(ledger: Ledger) -> None:
    for message in honest_requests():
        for index in range(message.sampling.n):
            expected, reason = expected_output(message, index)
            assert ledger.tokens[message.handle, index] == expected
            assert ledger.ends[message.handle, index] is reason


# The core, whose frontends are hostile.


@pytest.mark.parametrize("ahead", [False, True])
def test_messages_of_any_content(ahead: bool) -> None:
    """Nothing raises in the step loop, nor in the handling of a message; the books balance after each step,
    what is honest is exact, and all blocks come back."""
    house = House(ahead=ahead)
    draw = random.Random(3 + ahead)
    waiting = honest_requests()
    for number in range(SETS):
        message = frontend_message(draw, HONEST)
        if message.WhichOneof("message") != "utility" or not message.utility.HasField("reset_cache"):
            deliver(house, message, draw.choice((b"h1", b"h2", b"h3")))
        if waiting and number % (SETS // 10) == 0:
            house.put(waiting.pop(), b"honest")
        if number % 4 == 0:
            house.now += draw.choice((0.0, 0.001, 1.0))
            house.step()
    for each in waiting:
        house.put(each, b"honest")
    for _ in range(2000):
        if house.scheduler.requests or house.scheduler.in_flight or house.inbox:
            house.step()
            house.now += 0.1
    assert not house.scheduler.requests
    assert house.core.counters.internal_errors == 0
    check_honest(house.outputs_of(b"honest"))
    assert house.scheduler.pool.num_free == 64
    assert len(house.core.intake.refused) > 1 and house.core.counters.requests > len(HONEST)


def deliver(house: House, message: FrontendMessage, frontend: bytes) -> None:
    """Puts it where the sockets' thread would put it. The fake worker knows namespaces by seeds."""
    if message.HasField("add_request"):
        message.add_request.sampling.seed %= 1 << 62
    kind = message.WhichOneof("message")
    assert kind is not None
    house.put(getattr(message, kind), frontend)


def test_names_that_no_request_can_have_are_not_kept() -> None:
    """8,192 names that were aborted are remembered, each for two minutes: not if they have megabytes."""
    house = House()
    names = ["x" * 100_000, "\N{GRINNING FACE}" * 300, "short"]
    house.put(Utility(call_id=1, abort_by_ids=AbortByIds(request_ids=names)), b"h1")
    house.put(add_request(1, request_id=names[0]), b"h1")
    house.put(add_request(2, group=names[1]), b"h1")
    house.step()
    assert len(house.core.intake.recent_aborts) == 1
    assert [failure.field for failure in house.failures()] == ["request_id", "group"]


class Hub:
    """A house whose frontends are real sockets."""

    def __init__(self, context: Context, folder: Path) -> None:
        self.house = House()
        self.address = transport.frontends_address(folder)
        self.sockets = FrontendSockets(context, self.address, self.house.inbox)
        self.sockets.start()
        self._num_forwarded = 0

    def turn(self) -> None:
        """A step, if there is anything to do, and what it says to frontends."""
        house = self.house
        if house.scheduler.requests or house.inbox:
            house.step()
        for frontend, message in house.sent[self._num_forwarded :]:
            self.sockets.send(frontend, message)
        self._num_forwarded = len(house.sent)

    def close(self) -> None:
        self.sockets.close()
        self.house.inbox.close()


@pytest.fixture
def hub(context: Context, folder: Path) -> Iterator[Hub]:
    made = Hub(context, folder)
    yield made
    made.close()


def receive_all(frontend: FakeFrontend) -> list[EngineMessage]:
    """What is there now."""
    messages = []
    while frontend.socket.poll(0):
        messages.append(EngineMessage.FromString(transport.unpack(frontend.socket.recv())))
    return messages


def test_frame_sets_of_any_kind(hub: Hub, context: Context, folder: Path) -> None:
    """On the socket of the frontends, by two strangers and by one with the identity of a frontend that
    lives; he gets nothing, and the frontend all that is its own."""
    marker = folder / "marker"
    draw = random.Random(1)
    sets = frame_sets(FrontendMessage, draw, str(marker))
    ledger = Ledger()
    with (
        FakeFrontend(context, hub.address) as honest,
        FakeFrontend(context, hub.address) as one,
        FakeFrontend(context, hub.address) as two,
    ):
        honest.send(hello=Hello(frontend_id=honest.identity.hex()))
        services.wait_until(lambda: (hub.turn(), honest.socket.poll(0))[1] > 0)
        assert receive_all(honest)[0].HasField("welcome")
        thief = transport.connect_dealer(context, hub.address, honest.identity)
        waiting = honest_requests()
        for number, frames in enumerate(islice(sets, SETS)):
            draw.choice((one, two)).socket.send_multipart(frames)
            if number % 10 == 0:
                thief.send_multipart(frames, zmq.NOBLOCK)
            if number % (SETS // len(HONEST)) == 0 and waiting:
                honest.send(add_request=waiting.pop())
            hub.turn()
            take_outputs(honest, ledger)
        for each in waiting:
            honest.send(add_request=each)
        total = sum(message.sampling.n for message in honest_requests())
        services.wait_until(lambda: (hub.turn(), take_outputs(honest, ledger), len(ledger.ends))[2] == total)
        check_honest(ledger)
        assert not thief.poll(0), "he hears what is for another one"
        thief.close()
        for stranger in (one, two):
            receive_all(stranger)
        services.wait_until(lambda: (hub.turn(), hub.sockets.num_bad_frames)[1] > SETS / 3)
    assert hub.house.core.counters.internal_errors == 0
    assert not marker.exists()


def take_outputs(frontend: FakeFrontend, ledger: Ledger) -> None:
    for message in receive_all(frontend):
        if message.HasField("step_outputs"):
            ledger.take(message.step_outputs)


# The core, whose workers' socket has a stranger.


def test_strangers_on_the_workers_socket(context: Context, folder: Path) -> None:
    """None of them is heard, whatever they send; each set is counted, and steps go on."""
    marker = folder / "marker"
    sets = frame_sets(WorkerMessage, random.Random(2), str(marker))
    with StopSignal() as stop, ExitStack() as stack:
        link = WorkerGroup(context, transport.workers_address(folder), stop, spawn_fake_worker)
        stack.callback(link.close)
        stranger = transport.connect_dealer(context, link._socket.address, transport.new_identity())
        stack.callback(stranger.close)
        for frames in islice(sets, SETS // 2):
            stranger.send_multipart(frames)
        link.start([[]], external=False)
        link.initialize(INITIALIZE)
        link.wait_ready(lambda what, fraction: None)
        for frames in islice(sets, SETS // 2):
            stranger.send_multipart(frames)
        one_step(link)
    assert link.num_bad_frames >= SETS // 2
    assert not marker.exists()


def test_results_that_do_not_answer_their_plan() -> None:
    """A worker that says anything is found out, by the one exception that ends its process."""
    draw = random.Random(6)
    plan = Plan(step=7, sample_rows=[2, 5])
    refused = 0
    for _ in range(SETS):
        message = any_message(StepResult.DESCRIPTOR, draw)
        assert isinstance(message, StepResult)
        if draw.random() < 0.7:
            message.step, message.token_ids = 7, pack_u32([1, 2])
        for name in ("beam_token_ids", "beam_logprobs"):
            if draw.random() < 0.3:
                setattr(message, name, column(draw))
        try:
            result = decode_result(message, plan)
        except ValueError:
            refused += 1
        else:
            assert len(result.token_ids) == 2 and result.step == 7
    assert refused > SETS / 3


# A worker, whose core is hostile.


def hostile_plan(draw: random.Random) -> StepPlan:
    """A plan that makes sense but for some columns, or none at all."""
    if draw.random() < 0.2:
        plan = any_message(StepPlan.DESCRIPTOR, draw)
        assert isinstance(plan, StepPlan)
        return plan
    plan = a_plan(draw.randrange(1 << 63))
    names = [each.name for each in plan.DESCRIPTOR.fields if each.type == each.TYPE_BYTES]
    for _ in range(draw.choice((1, 1, 2, 3))):
        if draw.random() < 0.5:
            setattr(plan, draw.choice(names), column(draw))
        else:
            new = plan.new_rows[0]
            setattr(new, draw.choice(("token_ids", "blocks")), column(draw))
            setattr(new, draw.choice(("row", "prompt_len", "sequence_index")), draw.choice((0, 1, 2**32 - 1)))
    if draw.random() < 0.3:
        plan.forks.add(row=draw.choice((0, 1, 2**32 - 1)), source_row=draw.choice((0, 1, 2**32 - 1)))
    return plan


def test_plans_that_make_no_sense() -> None:
    """Each ends by an exception, of which the core hears as Failed, or is executed: it never reaches memory
    that is not its own, and never stands still."""
    draw = random.Random(5)
    refused = 0
    runner, _ = load(SIMULATED, SimulatedPlatform(WorkerConfig(engine="ipc:///none")))
    for _ in range(SETS // 4):
        try:
            runner.launch(hostile_plan(draw))
            runner.finish()
        except Exception:
            refused += 1
            runner, _ = load(SIMULATED, SimulatedPlatform(WorkerConfig(engine="ipc:///none")))
    assert refused > SETS // 8


def test_frames_of_a_hostile_core(core: Core) -> None:
    """A worker drops what it cannot read, and goes on; a plan for rows that it does not have ends it with a
    clear word."""
    worker = WorkerThread(core.address)
    core.receive()
    sets = frame_sets(WorkerCommand, random.Random(7), "/nonexistent/marker")
    harmless = [frames for frames in islice(sets, 400) if not is_command(frames)]
    for frames in harmless:
        core.socket.send_multipart([core.peer, *frames])
    core.send(initialize=SIMULATED)
    assert core.receive().ready.num_blocks == 64
    for frames in harmless:
        core.socket.send_multipart([core.peer, *frames])
    core.send(step_plan=a_plan(1))
    assert core.receive().step_result.step == 1
    core.send(step_plan=StepPlan(step=2, rows=pack_u32([2**32 - 1])))
    failed = core.receive().failed
    assert failed.type == "PlanError" and failed.why
    assert worker.join() == 1


def is_command(frames: list[bytes]) -> bool:
    """Whether a worker would do it, were it a core's."""
    if len(frames) != 1 or frames[0][:1] != b"\x01":
        return False
    try:
        return WorkerCommand.FromString(frames[0][1:]).WhichOneof("command") is not None
    except Exception:
        return False


# All of it: a service.


def test_hostile_frames_against_a_service(victim: Service, tmp_path: Path) -> None:
    """Every process lives, a bystander's stream is what it always was, nothing is left behind."""
    marker = tmp_path / "marker"
    draw = random.Random(8)
    sets = frame_sets(FrontendMessage, draw, str(marker))
    (address,) = services.engine_addresses(victim)
    with unharmed(victim), zmq.Context() as own, FakeFrontend(own, address) as rogue:
        for number, frames in enumerate(islice(sets, SETS)):
            if len(frames) == 1 and is_disturbing(frames[0]):
                continue
            rogue.socket.send_multipart(frames)
            if number % 5 == 0:
                rogue.send(add_request=frontend_message(draw, HONEST).add_request)
            if number % 20 == 0:
                receive_all(rogue)
        for frame in bombs(str(marker)):
            rogue.socket.send(frame)
        rogue.send(hello=Hello(frontend_id="x", known_epoch=0))  # it forgets what it has asked for
        services.wait_until(lambda: any(each.HasField("welcome") for each in receive_all(rogue)))
    assert not marker.exists()


def is_disturbing(frame: bytes) -> bool:
    """Whether it may empty the prefix cache, which any frontend may do, and changes what is counted."""
    try:
        message = FrontendMessage.FromString(frame[1:])
    except Exception:
        return False
    return message.HasField("utility") and message.utility.HasField("reset_cache")
