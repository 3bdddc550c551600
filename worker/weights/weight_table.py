"""Which tensor of a checkpoint fills which parameter of a model."""

import re
from collections.abc import Mapping

import torch

from worker.layers.base import Weight, WeightOwner


def weight_table(model: torch.nn.Module, names: Mapping[str, tuple[str, ...]]) -> list[Weight]:
    """Resolves a family's table of names for one model.

    names: path of a layer in our model -> modules of the checkpoint that it is made of. In both, {layer}
    stands for the first number of the path, {expert} for the second. Layers that the model lacks may be
    listed; every layer that owns parameters must be. A layer of all experts has no second number: it gets
    names with {expert} in them.
    """
    table: list[Weight] = []
    for path, module in model.named_modules():
        if isinstance(module, WeightOwner):
            pattern, numbers = _split_numbers(path)
            numbers.setdefault("expert", "{expert}")
            table += module.weights(*(name.format(**numbers) for name in names[pattern]))
    filled = sum(weight.target.numel() for weight in table)
    assert filled == sum(parameter.numel() for parameter in model.parameters()), "a parameter has no source"
    return table


def _split_numbers(path: str) -> tuple[str, dict[str, str]]:
    """ "blocks.3.mlp.experts.7.up" -> "blocks.{layer}.mlp.experts.{expert}.up", and the numbers by name."""
    numbers = dict(zip(("layer", "expert"), re.findall(r"(?<=\.)\d+", path), strict=False))
    names = iter(numbers)
    return re.sub(r"(?<=\.)\d+", lambda _: f"{{{next(names)}}}", path), numbers
