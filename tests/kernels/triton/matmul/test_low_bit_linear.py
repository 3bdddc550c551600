"""Products with weights of 4 and 8 bits, against unpacked ones; their bits are the same in any schedule."""

import pytest
import torch

from kernels.triton.matmul import ranges
from kernels.triton.matmul.linear import linear
from kernels.triton.matmul.low_bit_linear import low_bit_linear
from kernels.triton.matmul.low_bit_weight import Code, LowBitWeight
from kernels.triton.matmul.ranges import LinearSizes
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.references import low_bit_linear_reference

DEPTH, FEATURES = 200, 70
"""Two ranges, of which the second is shorter and ends within a tile; a tile of rows that is not full."""
SCHEDULES = [
    LinearSizes(64, 16, 64, 4, 1, True),
    LinearSizes(128, 32, 64, 8, 1, False),
]
CASES = [(Code.INT4, 32), (Code.INT4, 96), (Code.INT8, 1 << 20), (Code.E4M3, 64), (Code.E2M1, 32)]
pytestmark = pytest.mark.usefixtures("short_ranges")


@pytest.fixture
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 values and more."""
    monkeypatch.setattr(ranges, "LEAST_RANGE", 64)


@pytest.fixture
def same_order(request: pytest.FixtureRequest, device: torch.device) -> bool:
    """Whether matrix instructions take the values of weights in few bits and of others in the same order:
    Hopper's do, and the interpreter."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] == 9
    return request.config.option.emulate_gpu in (None, 90)


def random_codes(
    code: Code, shape: tuple[int, int], group_size: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Codes [N, K], scales and zero points, as LowBitWeight.put() takes them."""
    generator, (rows, depth) = torch.Generator().manual_seed(seed), shape
    codes = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    groups = rows, -(-depth // group_size)
    scales = (torch.rand(groups, generator=generator) * 0.1 + 0.01).bfloat16().float()
    zeros = torch.randint(17, groups, generator=generator) if code is Code.INT4 else None
    if code.is_half:
        codes &= 15
    if code is Code.E4M3:
        codes = (codes.view(torch.float8_e4m3fn).float().nan_to_num(1.0) / 64).to(torch.float8_e4m3fn)
    return codes, scales, zeros


def weight_of(code: Code, group_size: int, device: torch.device) -> LowBitWeight:
    """Random codes, scales and zero points, written in two parts, rows in another order."""
    weight = LowBitWeight.empty((FEATURES, DEPTH), code, group_size, device)
    codes, scales, zeros = random_codes(code, (FEATURES, DEPTH), group_size, code.value)
    rows = torch.randperm(FEATURES, generator=torch.Generator().manual_seed(9))
    for part in (rows[:9], rows[9:]):
        weight.put(part, codes[part], scales[part], None if zeros is None else zeros[part])
    return weight


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize(("code", "group_size"), CASES)
def test_equals_the_unpacked_weight(
    device: torch.device, dtype: torch.dtype, code: Code, group_size: int, same_order: bool
):
    """Bit for bit where products have one order, rounded and wide; float64 but for rounding anywhere. x is a
    view of a wider tensor."""
    weight, bias = weight_of(code, group_size, device), random(FEATURES, dtype=dtype, seed=2).to(device)
    x = random(3, DEPTH + 8, dtype=dtype)[:, 8:].to(device)
    unpacked = weight.values().to(dtype).contiguous()
    wide = low_bit_linear(x, weight, bias, wide=True)
    if same_order:
        assert torch.equal(low_bit_linear(x, weight, bias), linear(x, unpacked, bias))
        assert torch.equal(wide, linear(x, unpacked, bias, wide=True))
    exact = low_bit_linear_reference(x, weight, bias).cpu()
    assert_close(wide.cpu(), exact, 2e-5 * exact.abs().max().item(), 2e-5)


@pytest.mark.parametrize(("code", "group_size"), CASES[1:])
@pytest.mark.parametrize("sizes", SCHEDULES, ids=str)
def test_every_schedule_has_the_same_bits(code: Code, group_size: int, sizes: LinearSizes):
    """A row alone and in a crowd, in programs that sum a range each or all of them."""
    weight, x = weight_of(code, group_size, torch.device("cpu")), random(18, DEPTH, dtype=torch.bfloat16)
    alone = low_bit_linear(x[17:], weight, None, True)
    assert torch.equal(low_bit_linear(x, weight, None, True, sizes)[17:], alone)


def test_every_code_is_exact(device: torch.device):
    """Of float8 e4m3, those below 2 ** -6 too, and of integers: a product with one is exact."""
    codes = torch.arange(256, dtype=torch.uint8).view(4, 64)
    x = torch.eye(64, dtype=torch.float16, device=device)
    for code, dtype in ((Code.E4M3, torch.float8_e4m3fn), (Code.INT8, torch.int8)):
        values = codes.view(dtype)
        if code is Code.E4M3:
            values = values.float().nan_to_num(0.0).to(dtype)
        weight = LowBitWeight.empty((4, 64), code, 64, device)
        weight.put(torch.arange(4), values, torch.ones(4, 1))
        result = low_bit_linear(x, weight, None, wide=True).t().cpu()
        assert torch.equal(result, values.float()) and torch.equal(weight.values().cpu(), values.float())


def test_every_float_of_4_bits_is_exact(device: torch.device):
    """Times scales down to the least that MXFP4 has, half of which is below the least normal float32."""
    codes = (torch.arange(64, dtype=torch.uint8) % 16)[None].expand(3, 64)
    weight = LowBitWeight.empty((3, 64), Code.E2M1, 32, device)
    scales = torch.tensor([[0.5, 2.0], [2.0**-6, 1.0], [2.0**-128, 2.0**-127]])
    weight.put(torch.arange(3), codes, scales)
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = torch.tensor(magnitudes + [-value for value in magnitudes])[codes.long()]
    meant = values * 2 * scales.repeat_interleave(32, 1)
    assert torch.equal(weight.values().cpu(), meant)
    x = torch.eye(64, dtype=torch.float16, device=device)
    result = low_bit_linear(x, weight, None, wide=True).t().cpu()
    assert torch.equal(result[:2], meant[:2])


def test_inputs_in_another_order(device: torch.device):
    """As act-order has them."""
    order = torch.randperm(DEPTH, generator=torch.Generator().manual_seed(1))
    plain = weight_of(Code.INT4, 32, device)
    weight = LowBitWeight(plain.codes, plain.params, Code.INT4, FEATURES, DEPTH, 32, order.to(device))
    x = random(2, DEPTH, dtype=torch.bfloat16).to(device)
    assert torch.equal(low_bit_linear(x, weight), low_bit_linear(x[:, order.to(device)], plain))
    assert torch.equal(weight.values()[:, order.to(device)], plain.values())
