"""The real scheduler over a model with states on the CUDA path: prompts begin with states that others have
saved."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagewire.internal.v1 import worker_pb2
from tests.engine_core.fakes import add_request
from tests.worker import test_pressure
from tests.worker.cuda.host_devices import interpret, load_on_the_host

SHAPE = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "max_position_embeddings": 96,
}
BASE = [3 + 7 * i % 300 for i in range(33)]


def load(command: worker_pb2.Initialize, *_: Any) -> Any:
    """As worker.load.load, on a device that is a CPU."""
    return load_on_the_host(command)


def test_prompts_that_share_their_beginnings(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """They get what they get alone, forks too; fewer tokens are computed. tests/worker/test_pressure.py has
    states of both kinds."""
    interpret(monkeypatch)
    monkeypatch.setattr(test_pressure, "load", load)
    folder = checkpoint("qwen3_5", **SHAPE)
    messages = [add_request(handle, [*BASE, handle, 5], n=1 + handle % 2, max_tokens=3) for handle in (1, 2)]
    engine = test_pressure.InProcess(folder, blocks=60, swap_costs=None, prefix_cache=False, block_size=16)
    expected = {key: tokens for each in messages for key, tokens in engine.outputs([each]).items()}
    sharing = test_pressure.InProcess(
        folder, blocks=60, swap_costs=None, prefix_cache=True, block_size=16, state_checkpoints=3
    )
    assert {key: tokens for each in messages for key, tokens in sharing.outputs([each]).items()} == expected
    assert sharing.scheduler.prefix_cache.hit_rate.num_found == 32
