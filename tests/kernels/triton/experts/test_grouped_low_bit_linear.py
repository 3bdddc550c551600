"""Products by expert with weights of 4 and 8 bits: their bits are those of a row with one expert's weight."""

from dataclasses import dataclass

import pytest
import torch

from kernels.triton.experts.dispatch import ExpertOrder, sort_by_expert
from kernels.triton.experts.grouped_low_bit_linear import grouped_low_bit_linear
from kernels.triton.matmul import ranges
from kernels.triton.matmul.low_bit_linear import low_bit_linear
from kernels.triton.matmul.low_bit_weight import Code, LowBitWeight
from kernels.triton.matmul.ranges import LinearSizes
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.matmul.test_low_bit_linear import random_codes
from tests.kernels.triton.references import grouped_low_bit_linear_reference

DEPTH, FEATURES, EXPERTS, TOP_K, TOKENS = 200, 70, 4, 2, 20
"""Two ranges, of which the second is shorter and ends within a tile; experts whose last tile is not full."""
CASES = [(Code.INT4, 96), (Code.INT8, 1 << 20), (Code.E4M3, 64), (Code.E2M1, 32)]
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
    weight: LowBitWeight  # of all experts
    bias: torch.Tensor  # [N, F]
    chosen: torch.Tensor  # [20, k]

    def order(self, tile: int = 0, tokens: slice = slice(None)) -> ExpertOrder:
        return sort_by_expert(self.chosen[tokens], EXPERTS, self.x.dtype, tile)

    def of_expert(self, expert: int) -> LowBitWeight:
        return self.weight.expert(expert)

    def products(self, sizes: LinearSizes | None, tokens: slice = slice(None)) -> torch.Tensor:
        """Results [T, k, F]."""
        order = self.order(0 if sizes is None else sizes.tokens, tokens)
        operands = self.x[tokens], self.weight, self.bias
        return grouped_low_bit_linear(*operands, order, order.tokens, sizes)[order.places.long()]


def make_operands(
    code: Code, group_size: int, dtype: torch.dtype = torch.bfloat16, device: str | torch.device = "cpu"
) -> Operands:
    """Rows of padding stay zeros, as loading leaves them."""
    fused = torch.full((TOKENS, DEPTH + 8), torch.nan, dtype=dtype)
    fused[:, 8:] = random(TOKENS, DEPTH, dtype=dtype)
    weight = LowBitWeight.empty((EXPERTS, FEATURES, DEPTH), code, group_size, torch.device(device))
    for expert in range(EXPERTS):
        rows = expert * FEATURES + torch.arange(FEATURES)
        weight.put(rows, *random_codes(code, (FEATURES, DEPTH), group_size, expert))
    bias = random(EXPERTS, FEATURES, dtype=dtype, seed=2)
    chosen = torch.tensor([[token % 3, (token + 1 + token % 2) % 3] for token in range(TOKENS)])
    return Operands(fused.to(device)[:, 8:], weight, bias.to(device), chosen.to(device))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize(("code", "group_size"), CASES)
def test_equals_float64(device: torch.device, dtype: torch.dtype, code: Code, group_size: int):
    """Rows by index with biases, and rows in the order of the pairs without; with tiles that are cut by the
    end of an expert."""
    given = make_operands(code, group_size, dtype, device)
    order = given.order(16)
    relative = 2.0 ** -(10 if dtype == torch.float16 else 7)
    for x, bias, rows in (
        (given.x, given.bias, order.tokens),
        (given.x[order.tokens.long()], None, None),
    ):
        result = grouped_low_bit_linear(x, given.weight, bias, order, rows)
        operands = x, given.weight, bias, order.owners, rows
        exact = grouped_low_bit_linear_reference(*operands).cpu()
        assert_close(result.cpu(), exact, 2e-5 * exact.abs().max().item(), relative)


@pytest.mark.parametrize("sizes", SCHEDULES, ids=str)
@pytest.mark.parametrize(("code", "group_size"), CASES)
def test_every_schedule_has_the_bits_of_a_single_product(code: Code, group_size: int, sizes: LinearSizes):
    """Programs that sum a range each, and programs that sum all of them; tiles of any size."""
    given = make_operands(code, group_size)
    results = given.products(sizes)
    for token in (0, 7, 19):
        for j, expert in enumerate(given.chosen[token].tolist()):
            row = given.x[token : token + 1]
            alone = low_bit_linear(row, given.of_expert(expert), given.bias[expert])
            assert torch.equal(results[token, j], alone[0])


def test_a_token_alone_and_in_a_crowd():
    """Whatever experts others have chosen."""
    given = make_operands(Code.E2M1, 32)
    results = given.products(None)
    for tokens in (slice(5, 6), slice(5, 9), slice(0, 6)):
        assert torch.equal(given.products(None, tokens)[5 - tokens.start], results[5])


def test_a_split_by_the_number_of_tokens_is_found(monkeypatch: pytest.MonkeyPatch):
    """A planted bug: ranges that are longer where there are more tokens. Biases leave little of a token's
    sums, so that rounding does not hide their last bits."""
    given = make_operands(Code.INT8, 1 << 20, torch.float16)
    given.bias[given.chosen[5]] -= given.products(SCHEDULES[1])[5]
    expected = given.products(SCHEDULES[1])
    monkeypatch.setattr(ranges, "range_length", lambda features, depth: 256)
    assert not torch.equal(given.products(SCHEDULES[1]), expected)


def test_weights_of_experts_without_tokens_are_not_read():
    """Nor what pads an expert's last tile."""
    given = make_operands(Code.INT8, 1 << 20)
    expected = given.products(None)
    nan = torch.tensor(torch.nan).view(torch.int32)
    padding = given.weight.params.view(EXPERTS, -1, *given.weight.params.shape[1:])
    padding[3] = nan
    padding[:, 1, :, FEATURES - 64 :] = nan
    assert torch.equal(given.products(None), expected)


def test_no_pairs():
    given = make_operands(Code.INT4, 96)
    order = given.order(16, slice(0, 0))
    result = grouped_low_bit_linear(given.x[:0], given.weight, None, order, order.tokens)
    assert result.shape == (0, FEATURES) and result.dtype == torch.bfloat16
