"""Linear methods: what each multiplies by, and what takes the place of what."""

import pytest
import torch

from kernels.cpu.matmul.groups.weight import GroupedWeight, GroupedWords
from kernels.cpu.weight_forms import WeightForms
from kernels.torch_ops import Ops
from kernels.triton.matmul.low_bit_weight import Code, LowBitWeight
from tests.kernels.tolerances import random
from worker.layers.base import Weight
from worker.layers.matrix import (
    GroupedMethod,
    LowBitMethod,
    Matrix,
    PackedMethod,
    PlainMethod,
)

N, K = 50, 64


class Plain(Matrix):
    def weights(self, *names: str):
        (name,) = names
        yield Weight(f"{name}.weight", (N, K), self.weight)


def matrix(adds_bias: bool = True) -> Plain:
    weight, bias = random(N, K, dtype=torch.bfloat16), random(N, dtype=torch.bfloat16, seed=1)
    parameters = (torch.nn.Parameter(each, requires_grad=False) for each in (weight, bias))
    layer = Plain(*parameters, adds_bias=adds_bias)
    layer.ops = Ops()
    return layer


def test_a_matrix_begins_as_a_parameter():
    """A rank that does not add the bias leaves it out."""
    x = random(3, K, dtype=torch.bfloat16, seed=2)
    layer, other = matrix(), matrix(adds_bias=False)
    assert isinstance(layer.method, PlainMethod) and layer.packed is None and layer.table is None
    assert layer.product(x, wide=True).dtype == torch.float32
    exact = x.double() @ layer.weight.double().t()
    assert (other.product(x).double() - exact).abs().max() < 0.1
    assert (layer.product(x).double() - exact - layer.bias.double()).abs().max() < 0.1
    assert torch.equal(layer.look_up(torch.tensor([4, 1])), layer.weight[[4, 1]])


def test_another_method_takes_the_place_of_the_parameter():
    """Not of a table's, and not where a layer keeps it."""
    layer = matrix()
    (slot,) = layer.slots()
    low_bits = LowBitWeight.empty((N, K), Code.INT8, K, torch.device("cpu"))
    low_bits.put_rounded(torch.arange(N), layer.weight)
    assert slot.inputs == K
    slot.hold(LowBitMethod(low_bits))
    x = random(3, K, dtype=torch.bfloat16, seed=2)
    assert torch.equal(layer.product(x), layer.ops.low_bit_linear(x, low_bits, layer.bias))
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
    for attribute in ("is_table", "keeps_parameter"):
        kept = matrix()
        setattr(kept, attribute, True)
        assert not list(kept.slots())


@pytest.mark.parametrize("code", [Code.INT4, Code.INT8])
def test_one_of_all_experts(code: Code):
    """Of a parameter, and of low bits."""
    weights = random(3, N, K, dtype=torch.bfloat16)
    low_bits = LowBitWeight.empty((3, N, K), code, K, torch.device("cpu"))
    low_bits.put_rounded(torch.arange(3 * N), weights.flatten(0, 1))
    x, ops = random(2, K, dtype=torch.bfloat16, seed=2), Ops()
    for expert in range(3):
        plain = PlainMethod(weights).expert(expert).product(ops, x, None, False)
        assert torch.equal(plain, ops.linear(x, weights[expert]))
        held = LowBitMethod(low_bits).expert(expert).product(ops, x, None, False)
        assert torch.equal(held, ops.linear(x, low_bits.values()[expert].bfloat16()))


@pytest.mark.cpu_kernels
def test_packing():
    """The parameter is gone; words of a checkpoint are packed as they are, whatever form is asked for."""
    layer, x = matrix(), random(3, K, dtype=torch.bfloat16, seed=2)
    near = layer.product(x).float()
    layer.pack(WeightForms.of("int8"))
    assert isinstance(layer.method, PackedMethod) and layer.packed is layer.method.weight
    assert (layer.product(x).float() - near).abs().max() < 0.05 * near.abs().max()
    words = GroupedWords.empty((N, K), 32, K // 32)
    held = GroupedMethod(words)
    with pytest.raises(RuntimeError, match="packed before"):
        held.product(Ops(), x, None, False)
    packed = held.pack(WeightForms.of("int8").matrix, None).weight
    assert isinstance(packed, GroupedWeight) and packed.words is words.words
