"""What adapters add, by the compiled kernel: the sums of its definition, alone and beside any others."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import FLOAT32
from kernels.cpu.isa.simd import fma
from kernels.cpu.isa.vectors import LANES
from kernels.cpu_ops import CpuOps
from kernels.ops.layers.adapters import LayerParts, LowRank, StepAdapters
from kernels.torch_ops import Ops
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels
BF16, F32, F16 = torch.bfloat16, torch.float32, torch.float16
K, COLUMNS = 51, (33, 16)


def parts(rank: int, seed: int, dtype: torch.dtype, shared: bool = False) -> LayerParts:
    """Two parts side by side."""
    a = random(2, rank, K, dtype=dtype, seed=seed)
    ends = np.cumsum(COLUMNS)
    return tuple(
        LowRank(
            a[0] if shared else a[number],
            random(columns, rank, dtype=dtype, seed=seed + 1 + number),
            0.3 if shared else 0.3 + number,
            int(ends[number]) - columns,
        )
        for number, columns in enumerate(COLUMNS)
    )


ADAPTERS = [
    *(parts(16, seed, BF16) for seed in (1, 11, 21, 31, 41)),
    parts(16, 51, F32),
    parts(1, 61, BF16),
    parts(12, 71, F16),
    parts(40, 81, BF16, shared=True),
    parts(17, 87, F32),
    parts(256, 91, BF16)[1:],
    (),
]
"""Several of one shape, and of others; the last one leaves the layer as it is."""


def step(ops: Ops, owners: list[int], tokens: list[int]) -> StepAdapters:
    """tokens: sorted by their owners."""
    packed = {owner: ops.pack_adapter([(), ADAPTERS[owner]]) for owner in dict.fromkeys(owners)}
    return StepAdapters(
        torch.tensor(tokens),
        torch.tensor([packed[owner].address for owner in owners]),
        [(weights, owners.count(owner)) for owner, weights in packed.items()],
    )


def fused_sum(rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns sum_k rows[n, k] * x[k], float32, k ascending, each product added with one rounding."""
    found = []
    for first in range(0, len(rows), LANES):
        some = np.zeros((LANES, len(x)), np.float32)
        some[: len(rows[first : first + LANES])] = rows[first : first + LANES]
        total = f32x16(0.0)
        for k, value in enumerate(x.tolist()):
            total = fma(f32x16(some[:, k].copy()), f32x16(value), total)
        found.append(total.lanes.copy())
    return np.concatenate(found)[: len(rows)]


def expected(y: torch.Tensor, x: torch.Tensor, layer: LayerParts) -> torch.Tensor:
    """Of one token: y [N], x [K]."""
    out = y.clone()
    for a, b, scale, first in layer:
        t = fused_sum(a.float().numpy(), x.float().numpy()) * np.float32(scale)
        gain = torch.from_numpy(fused_sum(b.float().numpy(), t))
        out[first : first + len(b)] = (y[first : first + len(b)].float() + gain).to(y.dtype)
    return out


@pytest.fixture(params=[BF16, F32], ids=["bfloat16", "float32"], scope="module")
def ops(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(request.param)


@pytest.mark.parametrize("y_dtype", [None, F32])
def test_every_token_alone_and_beside_others(ops: CpuOps, y_dtype: torch.dtype | None):
    """Twelve adapters of one to twelve tokens each: the sums of the definition, in its order; tokens without
    an adapter are as they were."""
    owners = [owner for owner in range(len(ADAPTERS)) for _ in range(1 + owner * 5 % 12)]
    count = len(owners) + 7
    tokens = torch.randperm(count, generator=torch.Generator().manual_seed(3))[: len(owners)].tolist()
    x = random(count, K, dtype=ops.dtype)
    y = random(count, sum(COLUMNS), dtype=y_dtype or ops.dtype, seed=2)
    together = ops.adapt(y.clone(), x, 1, step(ops, owners, tokens))
    untouched = sorted(set(range(count)) - set(tokens))
    assert torch.equal(together[untouched], y[untouched])
    for owner, token in zip(owners, tokens, strict=True):
        alone = ops.adapt(y[token : token + 1].clone(), x[token : token + 1], 1, step(ops, [owner], [0]))
        assert torch.equal(alone[0], together[token]), (owner, token)
        assert torch.equal(alone[0], expected(y[token], x[token], ADAPTERS[owner])), (owner, token)
    assert torch.equal(ops.adapt(y.clone(), x, 0, step(ops, owners, tokens)), y), "another layer"


def test_torch_computes_the_same(ops: CpuOps):
    """But for the order of its sums."""
    owners = [owner for owner in range(len(ADAPTERS)) for _ in range(2)]
    tokens = list(range(len(owners)))
    x, y = random(len(owners), K, dtype=ops.dtype), random(len(owners), sum(COLUMNS), dtype=ops.dtype, seed=2)
    compiled = ops.adapt(y.clone(), x, 1, step(ops, owners, tokens)).float()
    plain = Ops().adapt(y.clone(), x, 1, step(Ops(), owners, tokens)).float()
    size = 1 if ops.dtype.itemsize == FLOAT32.size else 2**14
    assert (compiled - plain).abs().max() <= 4e-6 * size * plain.abs().max()
    assert not torch.equal(compiled, y.float())


def test_a_lookup_is_a_product_with_one(ops: CpuOps):
    """Bit for bit; of odd and even ids."""
    owners = [owner for owner in range(len(ADAPTERS)) for _ in range(5)]
    order = torch.randperm(len(owners) + 3, generator=torch.Generator().manual_seed(4))
    tokens, ids = order[: len(owners)].tolist(), torch.arange(len(order)) * 7 % K
    x, y = F.one_hot(ids, K).to(ops.dtype), random(len(ids), sum(COLUMNS), dtype=ops.dtype)
    adapters = step(ops, owners, tokens)
    found = ops.adapt_embeddings(y.clone(), ids, 1, adapters, K)
    assert torch.equal(found, ops.adapt(y.clone(), x, 1, adapters)) and not torch.equal(found, y)
    plain = Ops().adapt_embeddings(y.clone(), ids, 1, step(Ops(), owners, tokens), K)
    assert torch.allclose(plain.float(), found.float(), rtol=2e-2, atol=1e-2)


def test_adapters_of_chosen_tokens():
    """In the order of the adapters; a token may be chosen twice or not at all."""
    adapters = step(Ops(), [0, 0, 3, 5, 5], [6, 1, 8, 2, 4])
    found = adapters.at(torch.tensor([4, 0, 6, 1, 3, 4, 1]))
    assert found is not None
    assert found.tokens.tolist() == [2, 3, 6, 0, 5]
    (first, _), _, (last, _) = adapters.groups
    assert [(id(weights), count) for weights, count in found.groups] == [(id(first), 3), (id(last), 2)]
    for tokens in ([], [0, 3]):
        assert adapters.at(torch.tensor(tokens, dtype=torch.int64)) is None
