"""What the blocks of a worker hold for the core that adopts it: keys and values of real kernels."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.internal.v1 import engine_pb2, worker_pb2
from tests.engine_core.fakes import add_request
from tests.worker.cuda.host_devices import SMALL, interpret, load_on_the_host
from tests.worker.fakes import initialize, load_on_a_cpu
from tests.worker.lives import Lives
from worker.loop import StepRunner

Checkpoints = Callable[..., Path]
SYSTEM = [7 + 3 * i for i in range(21)]


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
    undisturbed = Lives(runner, ready, SMALL)
    undisturbed.live(requests(length), 1_000)
    lives, messages = Lives(runner, ready, SMALL), requests(length)
    for steps in kills:
        lives.live(messages, steps)
    before = lives.num_found
    lives.live(messages, 1_000)
    assert lives.ledger.tokens == undisturbed.ledger.tokens
    assert lives.num_found >= before + SMALL["block_size"]
