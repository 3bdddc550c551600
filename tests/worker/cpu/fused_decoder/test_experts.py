"""Mixtures of experts in one call against the layered model, and beside other rows: the same bits."""

import pytest
import torch

from tests.worker.cpu.fused_decoder.test_decoder import Checkpoints, run
from tests.worker.fakes import Driver
from worker.cpu import weights as cpu_weights
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.models.decoder import Decoder

pytestmark = pytest.mark.cpu_kernels

SIZES = {"block_size": 16, "num_blocks": 200, "max_num_seqs": 8}
FAMILIES = {
    "qwen2_moe": {"hidden_size": 128, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48},
    "granitemoe": {"hidden_size": 128},
    "granite_hybrid": {"hidden_size": 128, "mamba_d_head": 64},
    "glm4_moe": {"head_dim": 32},
    "gpt_oss": {"head_dim": 32},
    "llama4": {"head_dim": 32, "attention_chunk_size": 20, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize(
    ("family", "dtype", "quantization"),
    [
        *((family, "bfloat16", "") for family in FAMILIES),
        *((family, "float32", "") for family in ("qwen2_moe", "gpt_oss", "llama4")),
        ("qwen2_moe", "bfloat16", "int8"),
        ("qwen2_moe", "bfloat16", "int4"),
        ("gpt_oss", "bfloat16", "int4"),
    ],
)
def test_the_same_bits(
    family: str, dtype: str, quantization: str, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
):
    """In one call and layer by layer."""
    folder = checkpoint(family, **FAMILIES[family])
    driver, logits = run(folder, dtype, quantization=quantization)
    model = driver.runner.backend.model
    assert isinstance(model, FusedDecoder)
    monkeypatch.setattr(cpu_weights, "fuse", lambda model, *_: model)
    layered, expected = run(folder, dtype, quantization=quantization)
    assert isinstance(layered.runner.backend.model, Decoder)
    assert all(map(torch.equal, logits, expected))


@pytest.mark.parametrize("family", ["qwen2_moe", "glm4_moe"])
def test_experts_beside_other_rows(family: str, checkpoint: Checkpoints):
    """A row has the same bits alone and among others, whose tokens change how many rows its experts have; and
    however prompts are cut."""
    folder = checkpoint(family, **FAMILIES[family])
    _, expected = run(folder)
    for number, budget in ((1, 7), (5, 400)):
        driver = Driver(folder, dtype="bfloat16", budget=budget, **SIZES)
        sequence = driver.add([3 + (number + i) % 200 for i in range(1 + 9 * number)], 6)[0]
        driver.run()
        assert torch.equal(torch.stack(sequence.logits), expected[number])


def test_more_rows_than_a_chunk(checkpoint: Checkpoints):
    """An expert with more tokens than a product computes at once: the same bits as in small steps."""
    folder = checkpoint("mixtral", head_dim=32, num_local_experts=2, max_position_embeddings=1024)
    logits = []
    for budget in (700, 150):
        driver = Driver(folder, dtype="bfloat16", budget=budget, **SIZES)
        sequence = driver.add([3 + i * i % 200 for i in range(600)], 2)[0]
        driver.run()
        logits.append(torch.stack(sequence.logits))
    assert torch.equal(*logits)
