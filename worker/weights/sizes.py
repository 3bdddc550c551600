"""Compares config.json with the headers of its checkpoint, before anything is made of what it says."""

import math
from collections.abc import Collection

from worker.config.hf_config import ModelConfig
from worker.parallel import Capacity
from worker.weights.source import TensorSource

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
"""Fields that say how many layers there are, each of which has a tensor."""
_SPARE_VALUES, _SPARE_MATRICES = 1 << 24, 256
"""What a model may have beyond twice the values of its checkpoint, and matrices in a tensor, such as those of
heads: which tensor is missing, or has another shape, is said by name."""


def capacity_of(config: ModelConfig, checkpoint: TensorSource, known: Collection[str] = ()) -> Capacity:
    """Returns what the parameters of a model may take. Raises StartupError for a field of config.json that is
    larger than what it stands for in any tensor. known: fields that were compared otherwise."""
    shapes = {name: checkpoint.shape(name) for name in sorted(checkpoint.names())}
    widest = max(shapes, key=lambda name: max(shapes[name], default=0), default=None)
    largest, where = 0, "the checkpoint has none"
    if widest is not None:
        largest = max(shapes[widest], default=0)
        where = f"{widest} in {checkpoint.file_of(widest)} has {largest}"
    for fields, name, times in config.sizes:
        if name in _LAYERS and name not in known:
            fields.check_size(name, 1, len(shapes), f"the checkpoint's {len(shapes)} tensors")
        elif name not in known:
            fields.check_size(name, times, largest, f"any dimension of a tensor: {where}")
    values = sum(map(math.prod, shapes.values()))
    matrices = sum(math.prod(shape[:-2]) for shape in shapes.values())
    return Capacity(
        2 * values + _SPARE_VALUES, matrices + _SPARE_MATRICES * len(shapes), "the checkpoint has"
    )
