"""Experts in a program: layers whose rows are known only when the program is there."""

import pytest
import torch

from kernels.batch import InputBatch
from kernels.cpu.attention.block_attention import block_kernels
from kernels.cpu.program.recording import RecordingOps
from kernels.cpu.weight_forms import WeightForms
from kernels.cpu_ops import CpuOps
from worker.layers.linear import RowLinear, column_linear
from worker.layers.mlp import GatedMLP
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
    layer.compute_by(CpuOps(torch.bfloat16))
    for part in (layer.gate_up, layer.down):
        part.pack(WeightForms.of(""))
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
        ops = RecordingOps(CpuOps(torch.bfloat16), blocks, most_tokens)
        counts = torch.zeros(EXPERTS, dtype=torch.int64)
        x = ops.buffers.lasting((most_tokens, WIDTH), torch.bfloat16)
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(9)))
        experts = [expert(seed) for seed in range(EXPERTS)]
        outputs = []
        with ops.layer():
            decided = ops.decide_rows(counts)
            for number, layer in enumerate(experts):
                with decided.of(number), ops.recording(layer):
                    outputs.append(layer(x, step(most_tokens)))
        program = ops.build(outputs[0])
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
