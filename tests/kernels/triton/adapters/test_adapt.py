"""Adapters against float64; and bits, which are those of a token alone."""

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.ops.layers.adapters import TILE, DeviceAdapters, LowRank
from kernels.triton.adapters import adapt as module
from kernels.triton.adapters.adapt import adapt
from kernels.triton.adapters.pack import DeviceAdapter
from kernels.triton.matmul import ranges
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where

if TYPE_CHECKING:
    from ptx_emulator.launch import Emulator

DEPTH, SIZES, FIRST = 136, (70, 24, 33), (0, 70, 94)
"""Two ranges, of which the second ends within its first iteration; outputs of three parts."""
OWNERS = [0] * 20 + [None] * 3 + [1, 2, 1, None, 1] + [3] * 2 + [0]
"""Adapters of the tokens: those of the first one need two tiles."""
T = len(OWNERS)


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 values and more."""
    monkeypatch.setattr(ranges, "LEAST_RANGE", 64)


def part(index: int, rank: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> LowRank:
    a = random(rank, DEPTH, dtype=dtype, seed=seed, scale=DEPTH**-0.5)
    return LowRank(a, random(SIZES[index], rank, dtype=dtype, seed=seed + 100), 1.7, FIRST[index])


PARTS = [
    (part(0, 8, 1), part(1, 8, 2), part(2, 8, 3)),
    (part(1, 20, 4, torch.float32),),
    (part(0, 1, 5, torch.float16), part(2, 33, 6)),
    (),
]
"""What each adapter adds to layer 1; to layer 0, the last one adds something."""


@pytest.fixture
def adapters(where: Where, device_without_a_card: "Emulator | None") -> list[DeviceAdapter]:
    adapters = [DeviceAdapter([(part(0, 4, 9),) * (not parts), parts], where.device) for parts in PARTS]
    for tensor in (tensor for adapter in adapters for tensor in adapter.tensors):
        if device_without_a_card is not None:
            device_without_a_card.allow(tensor)
    return adapters


def step(adapters: list[DeviceAdapter], owners: list[int | None], device: torch.device) -> DeviceAdapters:
    tokens, tiles = list[int](), list[list[int]]()
    for number, adapter in enumerate(adapters):
        mine = [token for token, owner in enumerate(owners) if owner == number]
        for begin in range(0, len(mine), TILE):
            tiles.append([adapter.address, len(tokens) + begin, min(TILE, len(mine) - begin)])
        tokens += mine
    tiles += [[0, 0, 0]] * 2
    columns = torch.tensor(tokens + [T + 99] * 3), torch.tensor(tiles)
    return DeviceAdapters.of(*(column.to(device) for column in columns), parts=(1, 3))


def operands(where: Where) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y, views of wider tensors whose rest is NaN."""
    wide = torch.full((T, DEPTH + 8), torch.nan, dtype=where.dtype)
    wide[:, 8:] = random(T, DEPTH, dtype=where.dtype)
    out = torch.full((T, sum(SIZES) + 8), torch.nan, dtype=where.dtype)
    out[:, :-8] = random(T, sum(SIZES), dtype=where.dtype, seed=1)
    return wide.to(where.device)[:, 8:], out.to(where.device)[:, :-8]


def test_equals_float64(where: Where, adapters: list[DeviceAdapter]) -> None:
    x, y = operands(where)
    exact = y.double().cpu()
    for token, owner in enumerate(OWNERS):
        for a, b, scale, first in () if owner is None else PARTS[owner]:
            t = a.double() @ x[token].double().cpu() * scale
            exact[token, first : first + len(b)] += b.double() @ t
    before = y.clone()
    assert adapt(y, x, 1, step(adapters, OWNERS, where.device)) is y
    assert_close(y.cpu(), exact, 20 * max(where.absolute, 2e-6), where.relative)
    untouched = [token for token, owner in enumerate(OWNERS) if owner in (None, 3)]
    assert torch.equal(y[untouched], before[untouched])


def test_a_token_alone_and_in_a_crowd(where: Where, adapters: list[DeviceAdapter]) -> None:
    """Whatever tokens are beside it; with ranges that one program sums, and ranges that several sum."""
    x, y = operands(where)
    results = [
        adapt(y.clone(), x, 1, step(adapters, OWNERS, where.device), splits) for splits in (True, False)
    ]
    assert torch.equal(*results)
    for token in (19, 23, 24):
        alone = step(adapters, OWNERS[token : token + 1], where.device)
        one = adapt(y[token : token + 1].clone(), x[token : token + 1], 1, alone)
        assert torch.equal(one[0], results[0][token])


def test_a_split_by_the_number_of_tokens_is_found(
    where: Where, adapters: list[DeviceAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: ranges that are longer where there are more tokens."""
    x, y = operands(where)
    given = x, 1, step(adapters, OWNERS, where.device)
    expected = adapt(y.clone(), *given)
    monkeypatch.setattr(module, "range_length", lambda features, depth: 256)
    if where.dtype == torch.float32:
        assert not torch.equal(adapt(y.clone(), *given), expected)


def test_a_step_without_tiles_changes_nothing(device: torch.device) -> None:
    where = Where(device, torch.float32, 0, 0)
    (x, y), none = operands(where), torch.zeros((0, 3), dtype=torch.int64, device=device)
    before = y.clone()
    adapt(y, x, 1, DeviceAdapters.of(none[:, 0], none, (1, 3)))
    adapt(y, x, 1, DeviceAdapters.of(none.new_zeros(4), none.new_zeros((2, 3)), (1, 3)))
    assert torch.equal(y, before)


def test_memory_counts_a_shared_matrix_once() -> None:
    a = random(8, DEPTH, dtype=torch.bfloat16)
    parts = [LowRank(a, random(SIZES[i], 8, dtype=torch.bfloat16), 1.0, FIRST[i]) for i in range(2)]
    table = 8 * (1 + 2 * 8)
    assert DeviceAdapter([tuple(parts)], torch.device("cpu")).nbytes == table + 2 * (
        8 * DEPTH + 16 * (70 + 24)
    )
