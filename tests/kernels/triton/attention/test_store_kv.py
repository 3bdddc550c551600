"""Rotation, head norms and the store of keys and values in Triton."""

import pytest
import torch

from kernels.ops.attention.e4m3 import E4M3
from kernels.ops.layers.norms import rms_norm_reference
from kernels.triton.attention.fp8 import KVScales
from kernels.triton.attention.store_kv import HeadNorms, rotary_store_kv, store_kv
from tests.kernels.references.attention import store_kv_reference
from tests.kernels.references.layers import rotary_reference
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where
from tests.kernels.triton.references import quantize_reference

SHAPES = [(1, 1, 16, 4), (6, 2, 24, 4), (9, 9, 80, 16), (14, 2, 64, 3), (2, 1, 256, 16)]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block_size"), SHAPES)
def test_rotation_and_store(where: Where, heads: int, kv_heads: int, head_dim: int, block_size: int):
    """From views of one projection. A token without a slot, -1, is padding: it is not stored, and no
    slot changes; the key itself stays."""
    slots = torch.tensor([3, 4 * block_size - 1, 2 * block_size, -1, 0])
    fused = random(5, heads + 2 * kv_heads, head_dim, dtype=where.dtype)
    before = fused.clone()
    angles = random(5, head_dim // 2, dtype=torch.float32, seed=1, scale=50.0)
    cos = torch.cat((angles.cos(), angles.cos()), -1)
    sin = torch.cat((-angles.sin(), angles.sin()), -1)
    caches = [torch.full((4, kv_heads, block_size, head_dim), 7.0, dtype=where.dtype) for _ in range(2)]
    exact = rotary_reference(before[:, : heads + kv_heads].double(), cos.double(), sin.double())
    expected = [cache.double() for cache in caches]
    stored = slots >= 0
    values = before[stored, heads + kv_heads :].double()
    store_kv_reference(exact[stored, heads:], values, *expected, slots[stored])

    parts = fused.to(where.device)
    query, key, value = parts.split([heads, kv_heads, kv_heads], 1)
    caches = [cache.to(where.device) for cache in caches]
    angles_there = cos.to(where.device), sin.to(where.device)
    rotary_store_kv(query, key, value, *angles_there, slots.to(where.device), *caches)
    assert_close(query.cpu(), exact[:, :heads], where.absolute, where.relative)
    assert_close(caches[0].cpu(), expected[0], where.absolute, where.relative)
    assert torch.equal(caches[1].cpu().double(), expected[1])
    assert torch.equal(parts[:, heads:].cpu(), before[:, heads:])


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 9, 80), (16, 8, 128)])
def test_head_norms(where: Where, heads: int, kv_heads: int, head_dim: int):
    """Qwen3: queries and keys are normed before they are rotated, the value is not; nothing is rounded
    between."""
    fused = random(3, heads + 2 * kv_heads, head_dim, dtype=where.dtype, scale=5.0)
    weights = [1 + random(head_dim, dtype=where.dtype, seed=seed, scale=0.3) for seed in (1, 2)]
    angles = random(3, head_dim // 2, dtype=torch.float32, seed=3, scale=50.0)
    cos, sin = torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)
    slots = torch.tensor([7, -1, 2])
    exact = [
        rotary_reference(rms_norm_reference(x.double(), w.double(), 1e-6), cos.double(), sin.double())
        for x, w in zip(fused.split([heads, kv_heads, kv_heads], 1), weights, strict=False)
    ]
    expected = [torch.zeros(2, kv_heads, 4, head_dim, dtype=torch.float64) for _ in range(2)]
    stored = slots >= 0
    values = fused[stored, heads + kv_heads :].double()
    store_kv_reference(exact[1][stored], values, *expected, slots[stored])

    query, key, value = fused.to(where.device).split([heads, kv_heads, kv_heads], 1)
    caches = [cache.to(where.device, where.dtype) for cache in map(torch.zeros_like, expected)]
    norms = HeadNorms(weights[0].to(where.device), weights[1].to(where.device), 1e-6)
    angles_there = cos.to(where.device), sin.to(where.device)
    rotary_store_kv(query, key, value, *angles_there, slots.to(where.device), *caches, norms)
    assert_close(query.cpu(), exact[0], 4 * where.absolute, 4 * where.relative)
    assert_close(caches[0].cpu(), expected[0], 4 * where.absolute, 4 * where.relative)
    assert torch.equal(caches[1].cpu().double(), expected[1])


def test_store_of_8_bits(where: Where):
    """Bit for bit the formula: ties, carries into the next power of two, subnormals, what is too large, NaN
    (of which a GPU knows one, without its sign)."""
    odd = [0.0, -0.0, 448, 464, -465, 3e4, -torch.inf, torch.inf, torch.nan, 1.9375, 1.0625, 1.1875]
    odd += [2**-6, 2**-9, 2**-10, 3 * 2**-10, -(2**-11), 0.9375 * 2**-6, 15.5, 16.5, -247.9, 255.9]
    spread = random(2, 3, 24, dtype=torch.float32) * torch.logspace(-4, 3, 24)
    key = torch.cat((torch.tensor([[odd + [1.0, -1.0]] * 3]), spread)).to(where.dtype)
    value = key.flip(0)
    scales = KVScales(torch.tensor([1.0, 0.125, 0.3]), torch.tensor([1.0, 7.0, 0.01]))
    slots = torch.tensor([5, 11, 0])
    expected = [torch.zeros(3, 3, 4, 24, dtype=E4M3).view(torch.uint8) for _ in range(2)]
    bits = [
        quantize_reference(x, of).view(torch.uint8) for x, of in ((key, scales.key), (value, scales.value))
    ]
    store_kv_reference(*bits, *expected, slots)
    caches = [torch.zeros(3, 3, 4, 24, dtype=E4M3, device=where.device) for _ in range(2)]
    there = KVScales(scales.key.to(where.device), scales.value.to(where.device))
    store_kv(*(t.to(where.device) for t in (key, value, slots)), *caches, there)
    assert all(
        torch.equal(one_nan(ours.cpu().view(torch.uint8)), one_nan(theirs))
        for ours, theirs in zip(caches, expected, strict=True)
    )


def one_nan(bits: torch.Tensor) -> torch.Tensor:
    """Float8 e4m3 as bytes, in which NaN has no sign."""
    return torch.where(bits & 0x7F == 0x7F, 0x7F, bits)


def test_rotation_and_store_of_8_bits(where: Where):
    """The rotated key is rounded once, not to the dtype first: within half a step of e4m3."""
    fused = random(4, 3, 64, dtype=where.dtype)
    angles = random(4, 32, dtype=torch.float32, seed=1, scale=50.0)
    cos, sin = torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)
    scales = KVScales(*(torch.tensor([scale], device=where.device) for scale in (0.02, 0.01)))
    caches = [torch.zeros(1, 1, 4, 64, dtype=E4M3, device=where.device) for _ in range(2)]
    exact = rotary_reference(fused[:, 1:2].double(), cos.double(), sin.double())
    parts, slots = fused.to(where.device).split([1, 1, 1], 1), torch.arange(4, device=where.device)
    rotary_store_kv(*parts, cos.to(where.device), sin.to(where.device), slots, *caches, scales=scales)
    stored = caches[0].cpu().double()[0, 0] * 0.02
    torch.testing.assert_close(stored, exact[:, 0], rtol=2**-4 + 1e-5, atol=0.02 * 2**-10)


def test_store_alone(where: Where):
    key, value = (random(3, 2, 24, dtype=where.dtype, seed=seed) for seed in (0, 1))
    slots = torch.tensor([5, 11, 0])
    expected = [torch.zeros(3, 2, 4, 24, dtype=where.dtype) for _ in range(2)]
    caches = [torch.zeros_like(cache).to(where.device) for cache in expected]
    store_kv_reference(key, value, *expected, slots)
    store_kv(*(t.to(where.device) for t in (key, value, slots)), *caches)
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(caches, expected, strict=True))


@pytest.mark.parametrize("heads", [1, 7, 8, 9, 17])
@pytest.mark.parametrize(("head_dim", "block_size"), [(2, 1), (6, 5), (16, 2)])
def test_heads_around_those_of_a_program(heads: int, head_dim: int, block_size: int, device: torch.device):
    """As many KV heads, too; the smallest head, one that is no power of two, blocks of one slot. Exact: turns
    by right angles of small integers."""
    tokens = 3
    fused = torch.randint(
        -9, 10, (tokens, 3 * heads, head_dim), generator=torch.Generator().manual_seed(heads)
    )
    fused = fused.float()
    turns = torch.randint(0, 4, (tokens, head_dim // 2), generator=torch.Generator().manual_seed(1))
    cosine, sine = torch.tensor([1.0, 0, -1, 0])[turns], torch.tensor([0, 1.0, 0, -1])[turns]
    cos, sin = torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)
    slots = torch.tensor([7 * block_size - 1, 0, 3 * block_size])
    expected = [torch.full((7, heads, block_size, head_dim), 99.0) for _ in range(2)]
    turned = rotary_reference(fused[:, : 2 * heads], cos, sin)
    store_kv_reference(turned[:, heads:], fused[:, 2 * heads :], *expected, slots)
    parts = fused.clone().to(device)
    caches = [torch.full_like(cache, 99.0).to(device) for cache in expected]
    query, key, value = parts.split([heads] * 3, 1)
    rotary_store_kv(query, key, value, cos.to(device), sin.to(device), slots.to(device), *caches)
    assert torch.equal(parts[:, :heads].cpu(), turned[:, :heads])
    assert torch.equal(parts[:, heads:].cpu(), fused[:, heads:])
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(caches, expected, strict=True))


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_a_step_of_padding_stores_nothing(kind: torch.dtype, device: torch.device):
    """Its queries are turned all the same; no tokens are no launch."""
    caches = [torch.full((2, 1, 4, 8), 7.0, device=device) for _ in range(2)]
    query, key, value = (torch.ones(3, 1, 8, device=device) for _ in range(3))
    cos, sin = torch.zeros(3, 8, device=device), torch.zeros(3, 8, device=device)
    slots = torch.full((3,), -1, dtype=kind, device=device)
    rotary_store_kv(query, key, value, cos, sin, slots, *caches)
    store_kv(key, value, slots, *caches)
    assert not query.any() and all((cache == 7).all() for cache in caches)
    rotary_store_kv(query[:0], key[:0], value[:0], cos[:0], sin[:0], slots[:0], *caches)
    store_kv(key[:0], value[:0], slots[:0], *caches)
    assert all((cache == 7).all() for cache in caches)
