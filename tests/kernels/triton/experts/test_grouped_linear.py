"""Products by expert against float64; and their bits, which are those of a row with one expert's weight."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from kernels.triton.capabilities import CAPABILITIES, assume
from kernels.triton.experts.dispatch import ExpertOrder, sort_by_expert
from kernels.triton.experts.grouped_linear import grouped_linear
from kernels.triton.experts.tile_sizes import (
    MANY_TOKENS,
    choose_grouped_sizes,
    choose_tile,
    class_pairs,
    largest_tile,
    most_tiles,
    token_classes,
)
from kernels.triton.matmul import ranges
from kernels.triton.matmul.linear import linear
from kernels.triton.matmul.ranges import LinearSizes
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where
from tests.kernels.triton.references import grouped_linear_reference

DEPTH, FEATURES, EXPERTS, TOP_K = 200, 70, 4, 2
"""Two ranges, of which the second is shorter and ends within an iteration."""
META = torch.device("meta")
SCHEDULES = [
    LinearSizes(64, 16, 64, 4, 1, True),
    LinearSizes(64, 32, 64, 4, 1, False),
    LinearSizes(128, 64, 32, 8, 1, False),
]
pytestmark = pytest.mark.usefixtures("short_ranges")


@pytest.fixture
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 values and more."""
    monkeypatch.setattr(ranges, "LEAST_RANGE", 64)


@dataclass(frozen=True)
class Operands:
    """Of 20 tokens, of which each has two experts; the last expert has no token."""

    x: torch.Tensor  # [20, K], a view of a wider tensor whose rest is NaN
    weight: torch.Tensor  # [N, F, K]
    bias: torch.Tensor  # [N, F]
    chosen: torch.Tensor  # [20, k]

    def order(self, tile: int, tokens: slice = slice(None)) -> ExpertOrder:
        return sort_by_expert(self.chosen[tokens], EXPERTS, self.x.dtype, tile)


def operands(dtype: torch.dtype, device: torch.device) -> Operands:
    fused = torch.full((20, DEPTH + 8), torch.nan, dtype=dtype)
    fused[:, 8:] = random(20, DEPTH, dtype=dtype)
    weight = random(EXPERTS, FEATURES, DEPTH, dtype=dtype, seed=1)
    bias = random(EXPERTS, FEATURES, dtype=dtype, seed=2)
    chosen = torch.tensor([[token % 3, (token + 1 + token % 2) % 3] for token in range(20)])
    x, *rest = (part.to(device) for part in (fused, weight, bias, chosen))
    return Operands(x[:, 8:], *rest)


@pytest.mark.parametrize("tile", [16, 64])
def test_equals_float64(where: Where, tile: int):
    """Rows by index, and rows in the order of the pairs; with biases and without."""
    given = operands(where.dtype, where.device)
    order = given.order(tile)
    result = grouped_linear(given.x, given.weight, given.bias, order, order.tokens)
    cpu = given.x.cpu(), given.weight.cpu()
    exact = grouped_linear_reference(*cpu, given.bias.cpu(), order.owners.cpu(), order.tokens.cpu())
    absolute = DEPTH**0.5 * max(where.absolute, 2e-5)
    assert_close(result.cpu(), exact, absolute, where.relative)
    sorted_rows = given.x[order.tokens.long()]
    plain = grouped_linear(sorted_rows, given.weight, None, order)
    exact = grouped_linear_reference(sorted_rows.cpu(), given.weight.cpu(), None, order.owners.cpu())
    assert_close(plain.cpu(), exact, absolute, where.relative)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def given(request: pytest.FixtureRequest) -> Iterator[Operands]:
    yield operands(request.param, torch.device("cpu"))


def pairs_of(given: Operands, sizes: LinearSizes | None, tokens: slice = slice(None)) -> torch.Tensor:
    """Results [T, k, F]."""
    order = given.order(16 if sizes is None else sizes.tokens, tokens)
    y = grouped_linear(given.x[tokens], given.weight, given.bias, order, order.tokens, sizes)
    return y[order.places.long()]


@pytest.mark.parametrize("sizes", SCHEDULES, ids=str)
def test_every_schedule_has_the_bits_of_a_single_product(given: Operands, sizes: LinearSizes):
    """Programs that sum a range each, and programs that sum all of them; tiles of any size."""
    results = pairs_of(given, sizes)
    for token in (0, 7, 19):
        for j, expert in enumerate(given.chosen[token].tolist()):
            alone = linear(given.x[token : token + 1], given.weight[expert], given.bias[expert])
            assert torch.equal(results[token, j], alone[0])


def test_a_token_alone_and_in_a_crowd(given: Operands):
    """Whatever experts others have chosen."""
    results = pairs_of(given, None)
    for tokens in (slice(5, 6), slice(5, 9), slice(0, 6)):
        assert torch.equal(pairs_of(given, None, tokens)[5 - tokens.start], results[5])


def test_a_split_by_the_number_of_tokens_is_found(given: Operands, monkeypatch: pytest.MonkeyPatch):
    """A planted bug: ranges that are longer where there are more tokens."""
    expected = pairs_of(given, SCHEDULES[1])
    monkeypatch.setattr(ranges, "range_length", lambda features, depth: 256)
    assert not torch.equal(pairs_of(given, SCHEDULES[1]), expected)


def test_weights_of_experts_without_tokens_are_not_read(given: Operands):
    expected = pairs_of(given, None)
    given.weight[3] = torch.nan
    assert torch.equal(pairs_of(given, None), expected)


def sizes_of(tokens: int, top_k: int, num_experts: int, dtype: torch.dtype) -> LinearSizes:
    """Of a product with four ranges on an H100."""
    tile = choose_tile(tokens, top_k, num_experts, largest_tile(dtype, CAPABILITIES[90]), True)
    tiles = most_tiles(class_pairs(tokens, top_k), num_experts, tile)
    return choose_grouped_sizes(tiles, tile, 1536, 4, dtype, META)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sizes_follow_from_powers_of_two(dtype: torch.dtype):
    """So that a warm-up meets all of them; more tokens have larger tiles, up to a limit."""
    for numbers in ((2, 8), (6, 64), (8, 128), (8, 256)):
        classes = {sizes_of(tokens, *numbers, dtype) for tokens in token_classes(9999, MANY_TOKENS)}
        found = [sizes_of(tokens, *numbers, dtype) for tokens in range(1, 3 * MANY_TOKENS, 7)]
        assert set(found) == classes
        tiles = [sizes.tokens for sizes in found]
        assert tiles == sorted(tiles) and set(tiles) <= {16, 32, 64, 128}


def test_few_pairs_are_split_and_many_are_not():
    """While there are processors without work, on an H100."""
    kind = torch.bfloat16, META
    with assume(90):
        assert choose_grouped_sizes(8, 16, 1536, 4, *kind) == LinearSizes(64, 16, 64, 4, 4, True)
        assert not choose_grouped_sizes(128, 16, 1536, 4, *kind).splits
        assert not choose_grouped_sizes(8, 16, 1536, 1, *kind).splits
        assert choose_grouped_sizes(300, 128, 1536, 4, *kind) == LinearSizes(128, 128, 64, 8, 3, False)


def test_tiles_of_devices_without_matrix_units_of_warp_groups():
    """Are half as large, and their programs have as many features."""
    with assume(80) as capability:
        assert largest_tile(torch.bfloat16, capability) == 64
        sizes = choose_grouped_sizes(300, 64, 1536, 4, torch.bfloat16, META)
        assert sizes == LinearSizes(128, 64, 32, 8, 4, False)
    with assume(90):
        assert choose_grouped_sizes(300, 64, 1536, 4, torch.bfloat16, META).features == 64
