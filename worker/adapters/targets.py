"""Finds the target modules of a model while its weights are loaded."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from worker.layers.base import Layer, Weight
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.targets import Target, TargetModules
from worker.weights.loader import layers_and_names


def find_targets(
    model: torch.nn.Module,
    names: Mapping[str, tuple[str, ...]],
    prefix: str,
    checkpoint: Path | None,
) -> TargetModules:
    """Returns the modules of a model. Call it before weights are packed. names, prefix: of the family.
    checkpoint: that of TargetModules."""
    modules = TargetModules({}, frozenset(), prefix, checkpoint)
    targets: dict[str, list[Target]] = {}
    others = {*names["head"], *names["embedding"]}
    for layer, stored in layers_and_names(model, names):
        if isinstance(layer, ColumnLinear | RowLinear) and layer.takes_adapters:
            weights = [weight for weight in layer.weights(*stored) if len(weight.shape) == 2]
            for part, weight in enumerate(weights):
                module = modules.normal_name(weight.name.removesuffix(".weight"))
                targets.setdefault(module, []).append(_target(layer, part, len(weights), weight))
        else:
            others.update(stored)
    return replace(
        modules,
        targets={module: tuple(each) for module, each in targets.items()},
        others=frozenset(map(modules.normal_name, others)),
    )


def _target(layer: Layer, part: int, num_parts: int, weight: Weight) -> Target:
    rows, columns = (*weight.part, slice(None), slice(None))[:2]
    outputs, inputs = weight.shape
    if weight.transposed:
        rows, columns, outputs, inputs = columns, rows, inputs, outputs
    if columns.indices(inputs) == (0, inputs, 1):
        columns = slice(None)
    return Target(layer, part, num_parts, (outputs, inputs), rows, columns, weight.order)
