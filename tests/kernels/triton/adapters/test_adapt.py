"""Adapters against float64; and bits, which are those of a token alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from kernels.ops.layers.adapters import TILE, DeviceAdapters, LowRank
from kernels.triton.adapters import adapt as module
from kernels.triton.adapters.adapt import adapt, adapt_embeddings, adapt_heads
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


def step(
    adapters: list[DeviceAdapter],
    owners: list[int | None],
    device: torch.device,
    parts: Sequence[int] = (1, 3),
) -> DeviceAdapters:
    tokens, tiles, spans = list[int](), list[list[int]](), list[list[int]]()
    for number, adapter in enumerate(adapters):
        mine = [token for token, owner in enumerate(owners) if owner == number]
        spans.append([adapter.address, len(tokens), len(mine)] if mine else [0, 0, 0])
        for begin in range(0, len(mine), TILE):
            tiles.append([adapter.address, len(tokens) + begin, min(TILE, len(mine) - begin)])
        tokens += mine
    tiles += [[0, 0, 0]] * 2
    columns = torch.tensor(tokens + [T + 99] * 3), torch.tensor(tiles), torch.tensor(spans)
    return DeviceAdapters.of(*(column.to(device) for column in columns), parts=parts)


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


def test_wide_outputs(where: Where, adapters: list[DeviceAdapter]) -> None:
    """Of heads and routers: what is added to float32 does not depend on how few tokens there are."""
    x, _ = operands(where)
    y = random(T, sum(SIZES), dtype=torch.float32, seed=1).to(where.device)
    found = adapt(y.clone(), x, 1, step(adapters, OWNERS, where.device))
    for token in (19, 23, 24):
        a, b, scale, first = PARTS[OWNERS[token] or 0][0]
        exact = y[token].double().cpu()
        exact[first : first + len(b)] += b.double() @ (a.double() @ x[token].double().cpu() * scale)
        there = slice(first, first + len(b))
        assert_close(found[token, there].cpu(), exact[there], 4e-5, 2e-6)
        alone = step(adapters, OWNERS[token : token + 1], where.device)
        assert torch.equal(
            adapt(y[token : token + 1].clone(), x[token : token + 1], 1, alone)[0], found[token]
        )


def test_heads_are_layers_that_follow_one_another(
    where: Where, device_without_a_card: "Emulator | None"
) -> None:
    """In one launch, with the bits of a launch for each; also where a buffer has no room for all tiles."""
    heads = [(part(1, 8, seed)[:3], part(1, 20, seed + 9)[:3]) for seed in (1, 2, 3)]
    adapters = [
        DeviceAdapter([(), *((LowRank(*each[number], 0),) for each in heads)], where.device)
        for number in (0, 1)
    ]
    for tensor in (tensor for adapter in adapters for tensor in adapter.tensors):
        if device_without_a_card is not None:
            device_without_a_card.allow(tensor)
    x = random(T, len(heads), DEPTH, dtype=where.dtype).to(where.device)
    y = random(len(heads), T, SIZES[1], dtype=where.dtype, seed=1).to(where.device).transpose(0, 1)
    given = step(
        adapters, [owner % 2 if owner is not None else None for owner in OWNERS], where.device, [1] * 4
    )
    expected = y.clone()
    for head in range(len(heads)):
        adapt(expected[:, head], x[:, head], 1 + head, given)
    assert not torch.equal(expected, y)
    assert torch.equal(adapt_heads(y.clone(), x, 1, given), expected)


def test_a_buffer_without_room_for_all_tiles(
    where: Where, adapters: list[DeviceAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the tokens of a tile: here one of each adapted token."""
    x, y = operands(where)
    given = step(adapters, OWNERS, where.device)
    expected = adapt(y.clone(), x, 1, given)
    tiles = [[address, first + i, 1] for address, first, count in given.spans.tolist() for i in range(count)]
    assert len(tiles) > TILE
    split = torch.tensor(tiles, device=where.device)
    monkeypatch.setattr(module, "BUFFER_BYTES", 1)
    assert torch.equal(adapt(y.clone(), x, 1, replace(given, tiles=split, addresses=split[:, 0])), expected)


def ascending(b: torch.Tensor, t: torch.Tensor, fused: bool) -> torch.Tensor:
    """The sum over j of b[n, j] t[j] in float32, one after the other. fused: with one rounding."""
    total = torch.zeros(len(b), dtype=torch.float32)
    for column, value in zip(b.float().T, t, strict=True):
        added = column.double() * value.double()
        total = (total.double() + added).float() if fused else total + added.float()
    return total


def test_a_lookup_has_the_bits_of_its_formula(where: Where, device_without_a_card: "Emulator | None") -> None:
    """In the order of kernels.ops.layers.adapters, whatever tokens are beside it; others are untouched."""
    vocab, width = 50, 70
    lookups = [
        LowRank(
            random(r, vocab, dtype=kind, seed=r), random(width, r, dtype=torch.bfloat16, seed=r + 1), 0.7, 0
        )
        for r, kind in ((8, torch.bfloat16), (20, torch.float32), (1, torch.float16))
    ]
    adapters = [DeviceAdapter([(), (each,)], where.device) for each in lookups]
    for tensor in (tensor for adapter in adapters for tensor in adapter.tensors):
        if device_without_a_card is not None:
            device_without_a_card.allow(tensor)
    ids = (torch.arange(T) * 7 % vocab).to(where.device)
    owners = [None if owner == 3 else owner for owner in OWNERS]
    y = random(T, width, dtype=where.dtype).to(where.device)
    given = step(adapters, owners, where.device, (1, 1))
    found = adapt_embeddings(y.clone(), ids, 1, given, vocab)
    for token, owner in enumerate(owners):
        expected = y[token].cpu()
        if owner is not None:
            a, b, scale, _ = lookups[owner]
            t = a[:, ids[token]].float() * torch.tensor(scale, dtype=torch.float32)
            added = ascending(b, t, where.device.type == "cuda" or device_without_a_card is not None)
            expected = (expected.float() + added).to(where.dtype)
        assert torch.equal(found[token].cpu(), expected), token


def test_a_step_without_tiles_changes_nothing(device: torch.device) -> None:
    where = Where(device, torch.float32, 0, 0)
    (x, y), none = operands(where), torch.zeros((0, 3), dtype=torch.int64, device=device)
    before = y.clone()
    adapt(y, x, 1, DeviceAdapters.of(none[:, 0], none, none, (1, 3)))
    adapt(y, x, 1, DeviceAdapters.of(none.new_zeros(4), none.new_zeros((2, 3)), none, (1, 3)))
    assert torch.equal(y, before)


def test_memory_counts_a_shared_matrix_once() -> None:
    a = random(8, DEPTH, dtype=torch.bfloat16)
    parts = [LowRank(a, random(SIZES[i], 8, dtype=torch.bfloat16), 1.0, FIRST[i]) for i in range(2)]
    table = 8 * (2 + 2 * 8)
    assert DeviceAdapter([tuple(parts)], torch.device("cpu")).nbytes == table + 2 * (
        8 * DEPTH + 16 * (70 + 24)
    )
