"""What a checkpoint has behind its pooled hidden state: Dense modules of sentence-transformers, or the
classifier of a `...ForSequenceClassification`. Frontends read labels here, and workers what to load.

    2_Dense/config.json, 2_Dense/model.safetensors      head 1, for embeddings: each Dense module in order
    score.weight of the weights, num_labels, id2label   head 2, for classes
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewire.checkpoints.files import classified_decoder, read_object, read_whole
from pagewire.errors import StartupError

WHAT = "cannot pool with this checkpoint"
REMEDY = "--pooling-type last or mean embeds without what modules.json says"
MODULES_FILE = "modules.json"
DENSE, CLASSIFIER = 1, 2
"""Numbers of heads: Pooling.head."""
CLASSIFIER_TENSOR = "score.weight"
"""[labels, E]; there is no bias."""
MAX_SIZE = 1 << 16
"""Elements behind a stage, and labels."""
ACTIVATIONS = "Identity", "ReLU", "Sigmoid", "Tanh"
"""Of torch.nn, which Dense modules name."""


@dataclass(frozen=True, slots=True)
class DenseModule:
    """One Dense module.

    folder: of its files, in that of the checkpoint. activation: one of ACTIVATIONS.
    """

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class Classes:
    """What a classifier's numbers mean.

    labels: by index. activation: "none", "sigmoid" or "softmax", by problem_type and the number of labels.
    """

    labels: tuple[str, ...]
    activation: str


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """Returns the last word of the type of each module of sentence-transformers, and its path, in order.
    Raises StartupError."""
    content = read_whole(folder, MODULES_FILE, WHAT) if folder.is_dir() else None
    if content is None:
        return []
    try:
        modules = json.loads(content)
        return [(str(each["type"]).rpartition(".")[2], str(each.get("path", ""))) for each in modules]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = f"{MODULES_FILE} is not a list of modules: {type(error).__name__}"
        raise StartupError(WHAT, why, REMEDY) from None


def read_dense(folder: Path) -> list[DenseModule]:
    """Returns the Dense modules of modules.json, in order. Raises StartupError."""
    found = [_read_dense(folder, path) for kind, path in read_modules(folder) if kind == "Dense"]
    for one, other in zip(found, found[1:], strict=False):
        if one.out_features != other.in_features:
            why = (
                f"{one.folder} gives {one.out_features} features and {other.folder} takes {other.in_features}"
            )
            raise StartupError(WHAT, why, REMEDY)
    return found


def _read_dense(folder: Path, path: str) -> DenseModule:
    name = f"{path}/config.json"
    fields = read_object(folder, name, WHAT)
    if fields is None:
        raise StartupError(WHAT, f"{name}, which {MODULES_FILE} names, is not there", REMEDY)
    sizes = [fields.get(key) for key in ("in_features", "out_features")]
    if not all(type(size) is int and 0 < size <= MAX_SIZE for size in sizes):
        raise StartupError(WHAT, f"{name}: in_features and out_features must be 1 to {MAX_SIZE}", REMEDY)
    if not isinstance(fields.get("bias", True), bool):
        raise StartupError(WHAT, f"{name}: bias is neither true nor false", REMEDY)
    activation = str(fields.get("activation_function", "torch.nn.Tanh")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise StartupError(
            WHAT, f"{name}: activation_function {activation} is not known; {known} are", REMEDY
        )
    in_features, out_features = (int(size) for size in sizes if size)
    return DenseModule(path, in_features, out_features, fields.get("bias", True), activation)


def read_classes(config: dict[str, Any]) -> Classes | None:
    """Returns the classes of a config.json; None: its architecture does not classify. Raises StartupError."""
    if not classified_decoder(config):
        return None
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels", 2)  # as transformers has it
        if type(count) is not int or not 0 < count <= MAX_SIZE:
            raise StartupError(WHAT, f"config.json: num_labels must be 1 to {MAX_SIZE}")
        names = {str(index): f"LABEL_{index}" for index in range(count)}
    is_table = isinstance(names, dict) and 0 < len(names) <= MAX_SIZE
    if not is_table or {*names} != {str(index) for index in range(len(names))}:
        raise StartupError(WHAT, "config.json: id2label is not a table of the labels 0, 1, 2, ...")
    labels = tuple(str(names[str(index)]) for index in range(len(names)))
    kind = config.get("problem_type")
    activations = {
        None: "softmax" if len(labels) > 1 else "none",
        "regression": "none",
        "single_label_classification": "softmax",
        "multi_label_classification": "sigmoid",
    }
    if kind not in activations:
        raise StartupError(WHAT, f"config.json: problem_type {kind!r} is not known")
    return Classes(labels, activations[kind])
