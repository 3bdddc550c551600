"""What a layer of latent attention keeps, and torch's plan for it."""

import numpy as np
import torch

from kernels.attention.kv_cache_spec import CacheLayout
from kernels.attention.latent import LatentSpec
from kernels.attention.torch_plan import HostStep
from tests.kernels.references.attention import paged_attention_reference, store_kv_reference
from tests.kernels.tolerances import random

SPEC, HEADS, BLOCK_SIZE = LatentSpec(rank=24, rotary_dim=8), 5, 4


def test_what_is_kept():
    """One latent and one rotary key per token, whatever the number of heads. DeepSeek-V3: 576 values, where
    keys and values of its 128 heads would be 40,960."""
    (plane,) = LatentSpec(512, 64).planes(16, torch.bfloat16)
    assert plane.bytes_per_block == 16 * 576 * 2
    assert LatentSpec(24, 8) == SPEC != LatentSpec(32, 0)


def test_torch_attends_to_latents():
    """In one step: a row that decodes, and a prompt, against the formula of keys and values."""
    layout = CacheLayout(BLOCK_SIZE, 8, torch.float32, torch.device("cpu"), each_alone=True)
    starts, counts = np.array([6, 0]), np.array([1, 5])
    tables = np.array([[5, 2], [7, 1]])
    slots = np.array([2 * BLOCK_SIZE + 2, *(7 * BLOCK_SIZE + i for i in range(4)), BLOCK_SIZE])
    plane = random(9, 1, BLOCK_SIZE, 32, dtype=torch.float32)
    both = random(6, HEADS + 1, 32, dtype=torch.float32, seed=2)
    expected = plane.clone()
    store_kv_reference(both[:, -1:], both[:, -1:], expected, expected.clone(), torch.from_numpy(slots))
    plan = SPEC.torch_plan(HostStep(starts, counts, tables, slots), layout)
    result = plan.store_and_attend(both[:, :-1], both[:, -1], (plane,), 0.3)
    assert torch.equal(plane, expected)
    sizes = starts.tolist(), counts.tolist(), tables.tolist()
    exact = paged_attention_reference(both[:, :-1], plane, plane[..., :24], *sizes, None, 0.3)
    torch.testing.assert_close(result, exact)
