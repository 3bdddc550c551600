"""Names of a family's table: numbers of layers and of experts in a path."""

import torch

from worker.layers.linear import RowLinear
from worker.parallel import Placement
from worker.weights.loader import weight_table


def test_two_numbers_in_a_path():
    place = Placement(torch.float32, torch.device("cpu"))

    def layer() -> torch.nn.ModuleDict:
        experts = torch.nn.ModuleList(RowLinear(4, 4, False, place) for _ in range(2))
        return torch.nn.ModuleDict({"experts": experts, "output": RowLinear(4, 4, False, place)})

    model = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList(layer() for _ in range(2))})
    names = {
        "blocks.{layer}.experts.{expert}": ("layers.{layer}.moe.experts.{expert}.w2",),
        "blocks.{layer}.output": ("layers.{layer}.o_proj",),
    }
    assert [weight.name for weight in weight_table(model, names)] == [
        "layers.0.moe.experts.0.w2.weight",
        "layers.0.moe.experts.1.w2.weight",
        "layers.0.o_proj.weight",
        "layers.1.moe.experts.0.w2.weight",
        "layers.1.moe.experts.1.w2.weight",
        "layers.1.o_proj.weight",
    ]
