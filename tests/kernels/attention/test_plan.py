"""What is done to heads before they are stored, and what a kind of layer keeps."""

import torch

from kernels.attention.kv_cache_spec import AttentionSpec
from kernels.attention.plan import Rotation, rotated_heads
from kernels.ops.layers.norms import rms_norm_reference
from tests.kernels.attention.norms import norm
from tests.kernels.references.layers import rotary_reference
from tests.kernels.tolerances import random

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 5, 6, 2, 8


def heads() -> torch.Tensor:
    return random(TOKENS, HEADS + 2 * KV_HEADS, HEAD_DIM, dtype=torch.float32)


def test_heads_are_split_without_a_rotation():
    """Views of one projection."""
    qkv = heads()
    query, key, value = rotated_heads(qkv, KV_HEADS, None, None)
    assert torch.equal(torch.cat((query, key, value), 1), qkv)
    assert value.data_ptr() == qkv[:, HEADS + KV_HEADS :].data_ptr()


@torch.inference_mode()
def test_queries_and_keys_are_normed_then_rotated():
    """Each kind of head by its own norm; values stay."""
    angles = random(TOKENS, HEAD_DIM // 2, dtype=torch.float32, seed=3)
    cos, sin = (torch.cat((part, part), 1) for part in (angles.cos(), angles.sin()))
    sin[:, : HEAD_DIM // 2] *= -1
    norms, qkv = (norm(HEAD_DIM, 1, 1e-6), norm(HEAD_DIM, 2, 1e-6)), heads()
    query, key, value = rotated_heads(qkv.clone(), KV_HEADS, Rotation(cos, sin), norms)
    for got, first, layer in ((query, 0, norms[0]), (key, HEADS, norms[1])):
        normed = rms_norm_reference(qkv[:, first : first + got.shape[1]], layer.weight, 1e-6)
        torch.testing.assert_close(got, rotary_reference(normed, cos, sin))
    assert torch.equal(value, qkv[:, HEADS + KV_HEADS :])


def test_rows_of_a_table_of_angles():
    """An index names each token's row."""
    cos, sin = (random(9, HEAD_DIM, dtype=torch.float32, seed=seed) for seed in (1, 2))
    index = torch.tensor([8, 0, 3, 3, 1])
    assert torch.equal(Rotation(cos, sin, index)(heads()), Rotation(cos[index], sin[index])(heads()))


def test_kinds_of_layers():
    """Layers with equal sizes and windows share plans; a window takes as much memory."""
    full, windowed = AttentionSpec(2, 8), AttentionSpec(2, 8, window=4)
    assert (
        full == AttentionSpec(2, 8) and full != windowed and len({full, windowed, AttentionSpec(2, 8)}) == 2
    )
    for spec in (full, windowed):
        planes = spec.planes(16, torch.bfloat16)
        assert sum(plane.bytes_per_block for plane in planes) == 2 * 2 * 16 * 8 * 2
