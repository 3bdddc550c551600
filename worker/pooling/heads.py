"""Heads: what a pooled vector goes through before a client gets it (pagewire.checkpoints.heads)."""

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pagewire.checkpoints.files import config_overrides, read_object
from pagewire.checkpoints.heads import (
    CLASSIFIER,
    DENSE,
    VOCABULARY,
    WHAT,
    DenseModule,
    HeadModule,
    classifier_modules,
    read_classes,
    read_dense,
    vocabulary_head,
)
from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf
from pagewire.internal.v1 import worker_pb2
from worker.pooling.stages import AnyHead, Head, SparseHead, Stage, StageNorm
from worker.pooling.vectors import Floats
from worker.weights.checkpoint import Checkpoint
from worker.weights.loader import DUMMY_STD, read_finite
from worker.weights.open import open_checkpoint
from worker.weights.source import TensorSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Reads the tensors of one file or folder; random values where the weights are."""

    source: TensorSource | None
    seed: int

    def read(self, name: str, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Returns a tensor in float32. Raises StartupError when it is not there, has another shape, or is not
        finite."""
        if self.source is None:
            return (np.random.default_rng(self.seed).standard_normal(shape) * DUMMY_STD).astype(np.float32)
        if name not in self.source:
            raise StartupError(WHAT, f"the checkpoint lacks tensor {name}")
        if self.source.shape(name) != shape:
            found = list(self.source.shape(name))
            raise StartupError(WHAT, f"tensor {name} has shape {found}, not {list(shape)}")
        values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
        values = read_finite(self.source, name, (slice(None),) * len(shape)).float().contiguous().numpy()
        return values


def read_heads(
    initialize: worker_pb2.Initialize, size: int, logits: Callable[[Floats], Floats] | None = None
) -> Mapping[int, AnyHead]:
    """Returns the heads of a checkpoint by their numbers. size: elements of a hidden state. logits: of
    SparseHead; None: there is none. Raises StartupError."""
    folder = Path(initialize.model_path)
    if is_gguf(folder):
        return {}
    found = {
        DENSE: _read_dense(initialize, size),
        CLASSIFIER: _read_classifier(initialize, size),
        VOCABULARY: None if logits is None else _read_vocabulary(initialize, size, logits),
    }
    return {number: head for number, head in found.items() if head is not None}


def _read_config(initialize: worker_pb2.Initialize) -> dict[str, Any]:
    config = read_object(Path(initialize.model_path), "config.json", WHAT) or {}
    return config | config_overrides(initialize.config_overrides)


def _read_vocabulary(
    initialize: worker_pb2.Initialize, size: int, logits: Callable[[Floats], Floats]
) -> SparseHead | None:
    """Returns what predicts masked tokens. Checkpoints may lack it: few are for sparse vectors."""
    config = _read_config(initialize)
    head, vocab_size = vocabulary_head(config), config.get("vocab_size")
    if head is None or not isinstance(vocab_size, int):
        return None
    folder = Path(initialize.model_path)
    with nullcontext() if initialize.load_format == "dummy" else open_checkpoint(folder) as source:
        if source is not None and head.bias not in source:
            logger.info("the checkpoint has no tensor %s, and no sparse vectors", head.bias)
            return None
        tensors = _Tensors(source, initialize.seed)
        return SparseHead(
            _stage(tensors, head.transform, size, size), logits, tensors.read(head.bias, vocab_size)
        )


def _read_classifier(initialize: worker_pb2.Initialize, size: int) -> Head | None:
    folder, config = Path(initialize.model_path), _read_config(initialize)
    classes = read_classes(config)
    if classes is None:
        return None
    *inner, last = classifier_modules(config)
    with nullcontext() if initialize.load_format == "dummy" else open_checkpoint(folder) as source:
        tensors = _Tensors(source, initialize.seed)
        stages = [_stage(tensors, module, size, size) for module in inner]
        return Head((*stages, _stage(tensors, last, len(classes.labels), size)))


def _stage(tensors: _Tensors, module: HeadModule, outputs: int, inputs: int) -> Stage:
    norm = None
    if module.norm:
        bias = tensors.read(f"{module.norm}.bias", outputs) if module.norm_bias else None
        norm = StageNorm(tensors.read(f"{module.norm}.weight", outputs), bias, module.norm_eps)
    bias = tensors.read(f"{module.name}.bias", outputs) if module.bias else None
    return Stage(tensors.read(f"{module.name}.weight", outputs, inputs), bias, module.activation, norm)


def _read_dense(initialize: worker_pb2.Initialize, size: int) -> Head | None:
    """Returns the Dense modules. Those that cannot be used are logged: a frontend that needs them refuses
    to embed, and others, by --pooling-type, need none."""
    try:
        modules = read_dense(Path(initialize.model_path))
        if modules and modules[0].in_features != size:
            why = f"{modules[0].folder} takes {modules[0].in_features} features, and the model has {size}"
            raise StartupError(WHAT, why)
        stages = tuple(_read_stage(initialize, number, module) for number, module in enumerate(modules))
    except StartupError as error:
        logger.warning("%s", error)
        return None
    return Head(stages) if stages else None


def _read_stage(initialize: worker_pb2.Initialize, number: int, module: DenseModule) -> Stage:
    folder, shape = Path(initialize.model_path) / module.folder, (module.out_features, module.in_features)
    with nullcontext() if initialize.load_format == "dummy" else Checkpoint(folder) as source:
        tensors = _Tensors(source, initialize.seed + number)
        bias = tensors.read("linear.bias", module.out_features) if module.bias else None
        return Stage(tensors.read("linear.weight", *shape), bias, module.activation)
