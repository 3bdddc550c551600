"""Latent attention in a model: equal bits however its work is cut, and in 16 bits close to transformers."""

from pathlib import Path

import pytest
import torch

from kernels.attention.latent import LatentSpec
from tests.checkpoints import make_checkpoint
from tests.worker.fakes import Driver
from tests.worker.test_parity import prompts, reference
from worker.cpu.fused_decoder.decoder import FusedDecoder

pytestmark = pytest.mark.cpu_kernels

SIZES = {"q_lora_rank": 32, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "v_head_dim": 16}
BOUND = 0.05
"""Of the range of logits: weights, latents and queries are rounded to 8 bits, in another order than there."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"hidden_size": 64, "max_position_embeddings": 640, "initializer_range": 0.15}
    return make_checkpoint("youtu", tmp_path_factory.mktemp("youtu"), **SIZES, **changes)


def logits(
    folder: Path, inputs: list[list[int]], known: list[list[int]] | None = None, **changes: object
) -> list[torch.Tensor]:
    """The logits of 6 tokens after each prompt. known: tokens that were delivered before."""
    driver = Driver(folder, block_size=16, num_blocks=200, **changes)
    sequences = [
        driver.add(prompt, 6, delivered=() if known is None else known[number])[0]
        for number, prompt in enumerate(inputs)
    ]
    driver.run()
    return [torch.stack(sequence.logits) for sequence in sequences]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_same_bits(dtype: str, folder: Path):
    """Prompts at once, alone, in pieces, and resumed: what was sampled, then comes with a prompt."""
    inputs = [*prompts(4, 40), [3 + i % 300 for i in range(509)]]
    expected = logits(folder, inputs, dtype=dtype, budget=700)
    assert all(one.isfinite().all() for one in expected)
    (alone,) = logits(folder, inputs[-1:], dtype=dtype, budget=100)
    assert torch.equal(alone, expected[-1])
    cut = logits(folder, inputs, dtype=dtype, budget=37, shuffle=1)
    assert all(torch.equal(one, whole) for one, whole in zip(cut, expected, strict=True))
    known = [whole.argmax(-1)[:4].tolist() for whole in expected]
    resumed = logits(folder, inputs, known, dtype=dtype, budget=90)
    assert all(torch.equal(one, whole[4:]) for one, whole in zip(resumed, expected, strict=True))


def test_in_16_bits(folder: Path):
    """In one call per step, within a bound of transformers' float32."""
    inputs = prompts(4, 40)
    driver = Driver(folder, dtype="bfloat16", block_size=16, num_blocks=100)
    backend = driver.runner.backend
    assert isinstance(backend.model, FusedDecoder) and set(backend.cache.specs) == {LatentSpec(40, 8)}
    sequences = [driver.add(prompt, 1)[0] for prompt in inputs]
    driver.run()
    for sequence, (_, (theirs,)) in zip(sequences, reference(folder, inputs, 1), strict=True):
        assert (sequence.logits[0] - theirs).abs().max() <= BOUND * theirs.abs().max()
