"""Weights in 12 bits: every bit of them comes back, and every result is that of the packed product."""

import pytest
import torch

from kernels.cpu.matmul.compact.weight import MOST_RARE, NUM_CODES, CompactWeight, choose_base, compact_weight
from kernels.cpu.matmul.packed import PackedWeight, pack_weight
from kernels.cpu.runtime.arena import Arena
from tests.kernels.references.layers import linear_reference
from tests.kernels.references.matmul import compact_reference
from tests.kernels.tolerances import assert_close, random

BF16 = torch.bfloat16
SHAPES = [(16, 1), (16, 48), (40, 47), (64, 49), (64, 96), (576, 100), (1536, 33)]
"""(K, N): few groups and many, strips and blocks that end early."""
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17, 40, 255, 259]
"""Every tile, and more than a chunk."""


def matrix(in_features: int, out_features: int, rare: int = 0) -> torch.Tensor:
    """[N, K], as weights are. rare: about so many numbers are of every kind that there is."""
    weight = random(out_features, in_features, dtype=BF16, seed=1, scale=in_features**-0.5)
    if rare:
        every_kind = torch.arange(-(1 << 15), 1 << 15, max(1, (1 << 16) // rare)).to(torch.int16).view(BF16)
        finite = every_kind[every_kind.isfinite()]
        generator = torch.Generator().manual_seed(5)
        places = torch.randperm(weight.numel(), generator=generator)[: len(finite)]
        weight.view(-1)[places] = finite[: len(places)]
    return weight


def compact(weight: torch.Tensor, bias: torch.Tensor | None = None) -> CompactWeight:
    result = compact_weight(weight, bias)
    assert isinstance(result, CompactWeight)
    return result


def test_the_base_covers_most_exponents():
    """Of a normal distribution, all but one in some thousands."""
    weight = random(400, 400, dtype=BF16, scale=0.02)
    base = choose_base(weight)
    assert base is not None
    uppers = (weight.view(torch.int16).int() >> 8 & 0x7F) - base
    rare = ((uppers < 1) | (uppers > NUM_CODES)).double().mean()
    assert rare < 1 / 1000
    assert uppers.max() <= NUM_CODES, "the largest ones are those that matter"


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 1e38, 1e-40])
def test_one_value_everywhere(value: float):
    base = choose_base(torch.full((48, 64), value, dtype=BF16))
    assert base is not None and -1 <= base <= 126 - NUM_CODES


def test_exponents_that_differ_too_much():
    weight = random(64, 64, dtype=BF16) * torch.logspace(-30, 30, 64).to(BF16)
    assert choose_base(weight) is None
    assert choose_base(torch.full((48, 64), 3e38, dtype=BF16)) is None, "no code says so large an exponent"


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_the_formula_says_the_same_numbers(in_features: int, out_features: int):
    """What is written is read again by the formula: nothing is lost."""
    weight = matrix(in_features, out_features, rare=60)
    base = 55
    data, lists = compact_reference(weight, base)
    strips = data.transpose(1, 2).reshape(-1, in_features // 8, 192).int()
    pairs = strips[..., :128].view(len(strips), -1, 2, 4, 2, 8)  # two words; four times 8 numbers of each
    codes = strips[..., 128:].view(len(strips), -1, 1, 4, 2, 8)
    codes = torch.cat((codes & 15, codes >> 4), 2)
    lower, codes = (part.transpose(3, 4).reshape(len(strips), -1, 4, 32) for part in (pairs, codes))
    for strip, rare in enumerate(lists):
        code = codes[strip]
        numbers = (code & 8) << 12 | (code % 8 + base) << 8 | lower[strip]
        numbers[code % 8 == 0] = rare.int() & 0xFFFF
        numbers = numbers.to(torch.int16).view(BF16).view(-1, 4, 16, 2).permute(2, 0, 1, 3).reshape(16, -1)
        rows = weight[16 * strip : 16 * (strip + 1)]
        assert torch.equal(numbers[: len(rows)].view(torch.int16), rows.contiguous().view(torch.int16))


@pytest.mark.compact_weights
@pytest.mark.parametrize("rare", [0, 60, 2000])
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_packed_as_the_formula_says(
    in_features: int, out_features: int, rare: int, monkeypatch: pytest.MonkeyPatch
):
    from kernels.cpu.matmul.compact import weight as module

    weight = matrix(in_features, out_features, rare)
    base = choose_base(weight) or 57
    packed = pack_weight(weight, None)
    monkeypatch.setattr(module, "choose_base", lambda weight: base)
    result = compact(weight)
    expected, lists = compact_reference(weight, base)
    assert torch.equal(result.words, expected)
    assert torch.equal(torch.cat(result.lists)[: sum(map(len, lists))], torch.cat(lists))
    indexes = torch.tensor([0, out_features - 1, out_features // 2])
    assert torch.equal(result.rows(indexes).view(torch.int16), weight[indexes].view(torch.int16))
    x = random(9, in_features, dtype=BF16, scale=1e-30 if rare else 1.0)
    for tokens in (1, 2, 3, 4, 5, 9):
        expected = packed.multiply(x[:tokens], wide=True)
        assert torch.equal(result.multiply(x[:tokens], wide=True), expected)


@pytest.mark.compact_weights
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_the_bits_of_the_packed_product(in_features: int, out_features: int, tokens: int):
    weight, bias = matrix(in_features, out_features), random(out_features, dtype=BF16, seed=2)
    x = random(tokens, in_features, dtype=BF16)
    packed, narrow = pack_weight(weight, bias), compact(weight, bias)
    for wide in (True, False):
        assert torch.equal(narrow.multiply(x, wide), packed.multiply(x, wide))
    exact = x.double() @ weight.double().T + bias.double()
    assert_close(narrow.multiply(x, wide=True), exact, 5e-6, 5e-6)


@pytest.mark.compact_weights
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_have_scratch_memory_of_their_own(threads: int):
    """As large as the largest weight needs, also of threads that come later."""
    from kernels.cpu.runtime.thread_pool import TEAM

    weight, before = matrix(1536, 500), TEAM.threads
    x = random(70, 1536, dtype=BF16)
    expected = linear_reference(x, weight, None)
    narrow = compact(weight)
    TEAM.set_threads(threads)
    result = narrow.multiply(x)
    TEAM.set_threads(before)
    assert_close(result.double(), expected.double(), 1e-2, 2**-7)
    assert torch.equal(result, pack_weight(weight, None).multiply(x))


@pytest.mark.compact_weights
def test_what_does_not_fit_stays_as_it_is():
    assert isinstance(compact_weight(matrix(12, 60), None), PackedWeight), "K is no multiple of 8"
    assert isinstance(compact_weight(matrix(8, 60), None), PackedWeight), "K has one group"
    wild = random(64, 64, dtype=BF16) * torch.logspace(-30, 30, 64).to(BF16)
    assert isinstance(compact_weight(wild, None), PackedWeight)
    tame = compact(matrix(640, 480))
    assert 0.75 <= tame.words.nbytes / (2 * 640 * 480) < 0.7501
    assert sum(rare.nbytes for rare in tame.lists) < 2 * 640 * 480 * MOST_RARE


@pytest.mark.compact_weights
def test_matrices_of_an_arena_move_together():
    """One after the other, each no later than it lay; a matrix between them that stays keeps its values."""
    arena = Arena()
    weights = [matrix(64, out_features) for out_features in (480, 100, 960, 48, 333)]
    tensors = [arena.matrix(*weight.shape, BF16) for weight in weights]
    for tensor, weight in zip(tensors, weights, strict=True):
        tensor.copy_(weight)
    begins = [tensor.data_ptr() for tensor in tensors]
    results = {i: compact_weight(tensors[i], None, arena) for i in (0, 1, 3, 4)}
    arena.close_hole()
    places = {
        i: result.words.data_ptr() for i, result in results.items() if isinstance(result, CompactWeight)
    }
    assert places.keys() == results.keys()
    assert places[0] == begins[0] and places[1] < begins[1]
    assert places[3] == begins[3] and places[4] < begins[4]
    assert torch.equal(tensors[2], weights[2])
    x = random(9, 64, dtype=BF16)
    for i, result in results.items():
        assert torch.equal(result.multiply(x), pack_weight(weights[i], None).multiply(x))


@pytest.mark.compact_weights
@pytest.mark.parametrize("at_once", [1, 2 * 48 * 2 * 64])
def test_a_matrix_is_packed_over_itself(at_once: int, monkeypatch: pytest.MonkeyPatch):
    """Some blocks at a time: of the first ones a copy is written, which lies where they do; later ones are
    written at once, behind which nothing that is read begins."""
    from kernels.cpu.matmul.compact import weight as module

    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    arena, dense, bias = Arena(), matrix(64, 1000, rare=500), random(1000, dtype=BF16, seed=2)
    tensor = arena.matrix(*dense.shape, BF16)
    tensor.copy_(dense)
    begin = tensor.data_ptr()
    result = compact_weight(tensor, bias, arena)
    assert isinstance(result, CompactWeight) and result.words.data_ptr() == begin
    expected, lists = compact_reference(dense, result.base)
    assert torch.equal(result.words, expected) and len(result.lists) > 5
    rows = result.rows(torch.arange(1000))
    assert torch.equal(rows.view(torch.int16), dense.view(torch.int16))
    assert torch.equal(result.params[:1000], bias.float()) and not result.params[1000:].any()


@pytest.mark.compact_weights
def test_what_is_left_of_an_arena_goes_back():
    """Whole pages behind the last matrix are zeros again."""
    arena = Arena()
    weight = matrix(512, 960)
    tensor = arena.matrix(*weight.shape, BF16)
    tensor.copy_(weight)
    memory = tensor.view(torch.uint8).view(-1)
    result = compact_weight(tensor, None, arena)
    assert isinstance(result, CompactWeight)
    used = result.words.nbytes
    assert memory[used:].any()
    arena.close_hole()
    assert not memory[used + 4096 : -4096].any()
    assert torch.equal(result.rows(torch.arange(960)), weight)


@pytest.mark.compact_weights
@pytest.mark.parametrize("rare", [0, 12])
def test_compiled_code_is_python(rare: int):
    """Every tile, and rows of the weight, bit for bit: a block, a strip that ends early, two groups."""
    from kernels.cpu.matmul.compact.product import compact_linear, compact_rows

    dense, in_features, out_features = matrix(16, 57, rare), 16, 57
    weight = compact(dense)
    for rows in (1, 2, 3, 5, 6, 8, 9, 13):
        x, out = random(rows, in_features, dtype=BF16, seed=2), torch.zeros(rows, out_features, dtype=BF16)
        record = weight.record(x, out)
        record.rows = rows
        compact_linear.reference(record, 0, 4, 0)
        assert torch.equal(out, weight.multiply(x)), rows
    indexes, out = torch.tensor([0, 56, 20]), torch.zeros(3, in_features, dtype=BF16)
    compact_rows.reference(weight.rows_record(indexes.data_ptr(), out.data_ptr()), 0, 3, 0)
    assert torch.equal(out, dense[indexes])


@pytest.mark.compact_weights
def test_python_packs_as_compiled_code_does():
    """What is rare is counted, and listed."""
    from kernels.cpu.matmul.compact.product import count_rare, make_compact
    from kernels.cpu.matmul.records import CompactPackRecord

    dense = matrix(16, 48, 12)
    weight = compact(dense)
    numbers, data = torch.zeros(3, dtype=torch.int64), torch.zeros_like(weight.words)
    record = CompactPackRecord(
        rows_of_weight=dense.data_ptr(),
        weight=data.data_ptr(),
        numbers=numbers.data_ptr(),
        words=dense.shape[1] // 2,
        base=weight.base,
    )
    count_rare.reference(record, 0, 3, 0)
    ends = numbers.cumsum(0)
    assert 0 < ends[-1] <= len(weight.lists[0])
    rare = torch.zeros_like(weight.lists[0])
    numbers.copy_(rare.data_ptr() + 2 * (ends - numbers))
    make_compact.reference(record, 0, 3, 0)
    assert torch.equal(data, weight.words) and torch.equal(rare, weight.lists[0])
