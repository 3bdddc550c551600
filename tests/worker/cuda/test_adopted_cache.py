"""What the blocks of a worker hold for the core that adopts it: keys and values of real kernels."""

from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_core.intake.validation import Limits
from engine_core.kv_cache import kept_cache
from engine_core.kv_cache.block_changes import BlockChanges
from engine_core.scheduler.outputs.outputs import encode_outputs
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import decode_result
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.ipc.columns import pack_u32
from tests.checkpoints import EOS_ID, VOCAB_SIZE
from tests.engine_core.fakes import Ledger, add_request, make
from tests.worker.cuda.host_devices import SMALL, interpret, load_on_the_host
from tests.worker.fakes import initialize, load_on_a_cpu
from worker.block_contents import BlockContents
from worker.loop import StepRunner

Checkpoints = Callable[..., Path]
SECRET = b"s" * 32
SYSTEM = [7 + 3 * i for i in range(21)]


class Lives:
    """A runner, and one scheduler after another that plans ahead for it."""

    def __init__(self, runner: StepRunner, ready: worker_pb2.Ready) -> None:
        self.runner, self.num_blocks = runner, ready.num_blocks
        self.contents, self.ledger = BlockContents(SECRET), Ledger()
        self.num_found = 0

    def live(self, messages: list[engine_pb2.AddRequest], steps: int) -> None:
        """Goes on with what is not finished, for so many steps at most; the last ones have no reader."""
        rows, size = SMALL["max_num_seqs"], SMALL["block_size"]
        scheduler = Scheduler(
            num_blocks=self.num_blocks, block_size=size, max_num_seqs=rows, max_num_batched_tokens=12
        )
        changes, plans = BlockChanges(), deque[Plan]()
        kept_cache.track(scheduler.prefix_cache, changes, SECRET, self.contents.hand_over())
        self.ledger.started.clear()
        self.ledger.cached.clear()
        limits = Limits(VOCAB_SIZE, 96, rows, frozenset([EOS_ID]), self.num_blocks, size)
        for message in messages:
            if (message.handle, 0) not in self.ledger.ends:
                del message.delivered[:]
                message.delivered.add(token_ids=pack_u32(self.ledger.tokens[message.handle, 0]))
                scheduler.add(make(message, limits))
        for _ in range(steps):
            plan = scheduler.schedule(0.0)
            if plan.rows:
                self.contents.apply(changes.take())
                self.runner.launch(worker_pb2.StepPlan.FromString(encode_plan(plan).SerializeToString()))
                plans.append(plan)
            if len(plans) > 1 or (plans and not plan.rows):
                scheduler.update(decode_result(self.runner.finish(), plans.popleft()))
            for _, message in encode_outputs(scheduler.take_outputs(), 1, scheduler.step):
                self.ledger.take(message)
            if not scheduler.requests and not scheduler.in_flight:
                break
        self.num_found += scheduler.prefix_cache.hit_rate.num_found
        self.runner.abandon()


def requests(length: int) -> list[engine_pb2.AddRequest]:
    """Greedy, drawn and penalized; with a common beginning, and with none."""
    messages = [
        add_request(1, 14, max_tokens=length, ignore_eos=True),
        add_request(2, [*SYSTEM, 5], max_tokens=length, ignore_eos=True),
        add_request(3, [*SYSTEM, 9, 8], max_tokens=length // 2, ignore_eos=True),
    ]
    messages[0].sampling.temperature = 0
    messages[1].sampling.repetition_penalty = 1.2
    return messages


def load(
    device: str, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> tuple[StepRunner, worker_pb2.Ready]:
    command = initialize(checkpoint("llama", num_hidden_layers=1, max_position_embeddings=96), **SMALL)
    if device == "cpu":
        return load_on_a_cpu(command)
    interpret(monkeypatch)
    return load_on_the_host(command)


@pytest.mark.parametrize(("device", "length", "kills"), [("cpu", 20, (3, 6, 2, 9)), ("cuda", 4, (5,))])
def test_outputs_over_several_lives(
    device: str, length: int, kills: tuple[int, ...], checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after so many steps, with two in flight: tokens are those of a life that was never disturbed,
    and the blocks of earlier lives are used. cuda: in Triton's interpreter."""
    runner, ready = load(device, checkpoint, monkeypatch)
    undisturbed = Lives(runner, ready)
    undisturbed.live(requests(length), 1_000)
    lives, messages = Lives(runner, ready), requests(length)
    for steps in kills:
        lives.live(messages, steps)
    before = lives.num_found
    lives.live(messages, 1_000)
    assert lives.ledger.tokens == undisturbed.ledger.tokens
    assert lives.num_found >= before + SMALL["block_size"]
