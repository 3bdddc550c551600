"""Experts in a lowered program: layers whose rows are known only when the program is there."""

import pytest
import torch

from kernels.cpu.attention.block_attention import block_kernels
from kernels.cpu.elementwise.row_kernels import row_kernels
from worker.layers.linear import RowLinear, column_linear
from worker.layers.mlp.mlp import GatedMLP
from worker.lowering.builder import ProgramBuilder
from worker.model_input import InputBatch
from worker.parallel import Placement

pytestmark = pytest.mark.cpu_kernels
WIDTH, INNER, EXPERTS = 64, 96, 3


def expert(seed: int) -> GatedMLP:
    place = Placement(torch.bfloat16, torch.device("cpu"))
    gate_up = column_linear(WIDTH, (INNER, INNER), False, place)
    layer = GatedMLP(gate_up, RowLinear(INNER, WIDTH, False, place), "silu")
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8)
    for part in (layer.gate_up, layer.activation, layer.down):
        part.use_kernels(row_kernels())
    return layer


def step(tokens: int) -> InputBatch:
    numbers = torch.arange(tokens)
    return InputBatch(token_ids=numbers, positions=numbers, prompt_lens=numbers, attention={})


@pytest.mark.parametrize("most_tokens", [64, 128])
def test_each_expert_computes_its_own_rows(most_tokens: int):
    """As many as are in memory when the run is there; the same bits as its forward()."""
    with torch.inference_mode():
        blocks = block_kernels(torch.bfloat16, 16, 32, group=1)
        assert blocks is not None
        builder = ProgramBuilder(row_kernels(), blocks, most_tokens)
        counts = torch.zeros(EXPERTS, dtype=torch.int64)
        x = builder.buffers.shared("x", WIDTH)
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(9)))
        experts = [expert(seed) for seed in range(EXPERTS)]
        outputs = []
        with builder.layer():
            decided = builder.decide_rows(counts)
            for number, layer in enumerate(experts):
                with decided.of(number):
                    outputs.append(layer.lower(builder, x))
        program = builder.build(outputs[0])
        for tokens, chosen in ((40, [40, 0, 7]), (40, [1, 33, 0]), (3, [0, 3, 2]), (40, [5, 5, 30])):
            counts.copy_(torch.tensor(chosen))
            for output in outputs:
                output.fill_(7)
            batch = step(tokens)
            program.run(batch)
            for layer, output, rows in zip(experts, outputs, chosen, strict=True):
                if rows:
                    assert torch.equal(output[:rows], layer(x[:rows], batch))
                assert (output[rows:] == 7).all(), "no row more"
