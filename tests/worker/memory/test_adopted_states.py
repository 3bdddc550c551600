"""Checkpoints of states over several lives of the engine core, whose worker lives on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagewire.internal.v1 import engine_pb2
from tests.engine_core.fakes import add_request
from tests.worker.fakes import initialize, load_on_a_cpu
from tests.worker.lives import Lives

SIZES = {"max_num_seqs": 4, "block_size": 4}
COMMON = [3 + 7 * i % 300 for i in range(21)]


def requests(length: int) -> list[engine_pb2.AddRequest]:
    """Greedy, drawn and penalized, two of them with a common beginning."""
    messages = [
        add_request(1, [5 + i for i in range(30)], max_tokens=length, ignore_eos=True),
        add_request(2, [*COMMON, 5], max_tokens=length, ignore_eos=True),
        add_request(3, [*COMMON, 9, 8], max_tokens=length // 2, ignore_eos=True),
    ]
    messages[0].sampling.temperature = 0
    messages[1].sampling.repetition_penalty = 1.2
    return messages


@pytest.mark.parametrize(
    ("family", "checkpoints"), [("qwen3_5", 2), ("qwen3_5", 8), ("granite_hybrid", 2), ("falcon_h1", 8)]
)
def test_outputs_over_several_lives(family: str, checkpoints: int, checkpoint: Callable[..., Path]) -> None:
    """Killed after so many steps, with two in flight: tokens are those of a life that was never
    disturbed, and rows of later lives begin with states that earlier ones have saved."""
    command = initialize(checkpoint(family), num_blocks=60, state_checkpoints=checkpoints, **SIZES)
    runner, ready = load_on_a_cpu(command)
    assert ready.num_state_checkpoints == checkpoints
    undisturbed = Lives(runner, ready, SIZES)
    undisturbed.live(requests(14), 1_000)
    lives, messages = Lives(runner, ready, SIZES), requests(14)
    for steps in (5, 6, 2, 9):
        lives.live(messages, steps)
    before = lives.num_found
    lives.live(messages, 1_000)
    assert lives.ledger.tokens == undisturbed.ledger.tokens
    assert lives.num_found > before >= 3 * len(COMMON)


def test_states_are_those_of_the_tokens(checkpoint: Callable[..., Path]) -> None:
    """A checkpoint that outlives its core has the bits of one that a new worker saves for the same tokens."""
    command = initialize(checkpoint("qwen3_5"), num_blocks=60, state_checkpoints=2, **SIZES)
    states = []
    for kills in ((), (3, 2)):
        runner, ready = load_on_a_cpu(command)
        lives, messages = Lives(runner, ready, SIZES), requests(12)[:1]
        for steps in kills:
            lives.live(messages, steps)
        lives.live(messages, 4)
        row_states = runner.backend.states
        assert row_states is not None
        states.append([tensor[row_states.num_rows] for tensor in row_states.tensors])
    assert all(map(torch.equal, *states)) and any(tensor.any() for tensor in states[0])
