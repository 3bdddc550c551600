"""Hidden states of a device without a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, POOLING_TYPE_MEAN, Pooling
from pagewire.internal.v1.worker_pb2 import LoadAdapter
from pagewire.ipc.columns import unpack_f32
from pagewire_simulated.adapters import FILES
from pagewire_simulated.scores import logprob_reference
from pagewire_simulated.tokens import GAMMA, mix
from tests.engine_core.fakes import add_request

SIZE = 48
PROMPTS = [[5, 100, 33, 210, 7, 8, 9], [5, 100], [44] * 30]


def state(tokens: list[int], shift: int = 0) -> list[float]:
    context = shift + sum(mix(token + GAMMA * (i + 1)) for i, token in enumerate(tokens))
    return [float(np.float32(mix(context + GAMMA * (e + 1)) / 2.0**63 - 1)) for e in range(SIZE)]


@pytest.mark.parametrize("budget", [3, 64])
def test_they_are_those_of_the_formula_in_any_chunks(in_process: Callable[..., Any], budget: int):
    device = in_process(budget=budget)
    requests = [
        add_request(3 * kind + place, prompt, pooling=Pooling(type=kind))  # type: ignore[arg-type]
        for kind in (POOLING_TYPE_LAST, POOLING_TYPE_MEAN)
        for place, prompt in enumerate(PROMPTS)
    ]
    device.outputs(*requests)
    for place, prompt in enumerate(PROMPTS):
        found = [unpack_f32(device.vectors[3 * kind + place]) for kind in (1, 2)]
        states = np.array([state(prompt[: end + 1]) for end in range(len(prompt))], np.float32)
        assert found[0] == states[-1].tolist()
        assert np.abs(np.array(found[1]) - states.mean(0)).max() < 1e-5


def test_logits_are_those_of_the_ranks(in_process: Callable[..., Any]):
    device = in_process(budget=64)
    pooling = Pooling(type=POOLING_TYPE_LAST, token_ids=[7, 200])
    device.outputs(*(add_request(place, prompt, pooling=pooling) for place, prompt in enumerate(PROMPTS)))
    for place, prompt in enumerate(PROMPTS):
        scored = [logprob_reference(prompt, token, 320) for token in pooling.token_ids]
        found = unpack_f32(device.vectors[place])
        assert found == pytest.approx([-np.log(rank) for _, rank in scored])


def test_they_depend_on_the_adapter(in_process: Callable[..., Any], tmp_path: Path):
    """From its start on."""
    device, prompt = in_process(), PROMPTS[0]
    for name, content in zip(FILES, (b'{"r": 8}', b"weights"), strict=True):
        (tmp_path / name).write_bytes(content)
    order = LoadAdapter(number=1, source=str(tmp_path), max_bytes=100)
    digest = device.runner.load_adapter(order).result().digest
    requests = [add_request(end, prompt[:end], pooling=Pooling(type=POOLING_TYPE_LAST)) for end in (4, 5, 7)]
    for request in requests:
        request.adapter.name, request.adapter.digest, request.adapter.start = (
            "a",
            digest,
            min(4, request.handle - 1),
        )
    requests[0].ClearField("adapter")
    device.outputs(*requests)
    shift = int.from_bytes(digest[:8], "little")
    for end in (4, 5, 7):
        expected = state(prompt[:end], shift if end > 4 else 0)
        assert unpack_f32(device.vectors[end]) == expected
