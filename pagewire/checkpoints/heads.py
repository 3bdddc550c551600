"""What a checkpoint has behind its hidden states: Dense modules of sentence-transformers, the classifier of a
`...ForSequenceClassification`, or what predicts the tokens of a `...ForMaskedLM`. Frontends read labels here,
and workers what to load.

    2_Dense/config.json, 2_Dense/model.safetensors      head 1, for embeddings: each Dense module in order
    score.weight of the weights, num_labels, id2label   head 2, for classes; of encoders
                                                        other tensors: classifier_modules()
    tensors of vocabulary_head()                        head 3, of encoders, for sparse vectors
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pagewire.checkpoints.files import classifier, read_object, read_whole
from pagewire.errors import StartupError

WHAT = "cannot pool with this checkpoint"
REMEDY = "--pooling-type last or mean embeds without what modules.json says"
MODULES_FILE = "modules.json"
DENSE, CLASSIFIER, VOCABULARY = 1, 2, 3
"""Numbers of heads: Pooling.head."""
CLASSIFIER_TENSOR = "score.weight"
"""Of decoders, [labels, E]; there is no bias."""
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
    pooling: "last", "mean" or "cls": the state that is classified.
    """

    labels: tuple[str, ...]
    activation: str
    pooling: str = "last"

    @property
    def takes_pairs(self) -> bool:
        """Whether two texts are one input, as tokenizers of encoders put them together."""
        return self.pooling != "last"


@dataclass(frozen=True, slots=True)
class HeadModule:
    """One module of a head: norm(activation(linear(x))).

    name: of the linear layer. activation: one of ACTIVATIONS, or "GELU". norm: name of a layer norm; empty:
    there is none. The last module of a classifier has an output per label, others as many as inputs.
    """

    name: str
    activation: str = "Identity"
    bias: bool = True
    norm: str = ""
    norm_bias: bool = False
    norm_eps: float = 0.0


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
    for key, plain in (("use_residual", False), ("module_input_name", "sentence_embedding")):
        if fields.get(key, plain) != plain:
            raise StartupError(WHAT, f"{name}: {key} {fields[key]!r} is not supported", REMEDY)
    in_features, out_features = (int(size) for size in sizes if size)
    return DenseModule(path, in_features, out_features, fields.get("bias", True), activation)


def read_classes(config: dict[str, Any]) -> Classes | None:
    """Returns the classes of a config.json; None: its architecture does not classify. Raises StartupError."""
    if not classifier(config):
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
    return Classes(labels, activations[kind], _read_pooling(config))


def _read_pooling(config: dict[str, Any]) -> str:
    """Returns the state that a classifier takes. Raises StartupError."""
    name = classifier(config)
    if name not in _MODULES:
        return "last"
    pooling = config.get("classifier_pooling", "cls") if name == _MODERN_BERT else "cls"
    if pooling not in ("cls", "mean"):
        raise StartupError(WHAT, f"config.json: classifier_pooling {pooling!r} is not known")
    return str(pooling)


_MODERN_BERT = "ModernBertForSequenceClassification"
_ROBERTA = HeadModule("classifier.dense", "Tanh"), HeadModule("classifier.out_proj")
_MODULES = {
    "BertForSequenceClassification": (
        HeadModule("bert.pooler.dense", "Tanh"),
        HeadModule("classifier"),
    ),
    "DistilBertForSequenceClassification": (
        HeadModule("pre_classifier", "ReLU"),
        HeadModule("classifier"),
    ),
    _MODERN_BERT: (HeadModule("head.dense", "GELU", norm="head.norm"), HeadModule("classifier")),
    "RobertaForSequenceClassification": _ROBERTA,
    "XLMRobertaForSequenceClassification": _ROBERTA,
}


def classifier_modules(config: dict[str, Any]) -> tuple[HeadModule, ...]:
    """Returns the modules of the classifier of a config.json that has classes, in order. Raises
    StartupError."""
    name = classifier(config)
    if name != _MODERN_BERT:
        return _MODULES.get(name, (HeadModule("score", bias=False),))
    activation, eps = config.get("classifier_activation", "gelu"), config.get("norm_eps", 1e-5)
    if activation != "gelu":
        raise StartupError(WHAT, f"config.json: classifier_activation {activation!r} is not known; gelu is")
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise StartupError(WHAT, "config.json: norm_eps is not a number between 0 and 1")
    biases = [config.get(each, False) is True for each in ("classifier_bias", "norm_bias")]
    first, last = _MODULES[name]
    return replace(first, bias=biases[0], norm_bias=biases[1], norm_eps=eps), last


@dataclass(frozen=True, slots=True)
class VocabularyHead:
    """What predicts tokens: the embedding's logits of transform(x), plus a bias. bias: name of its tensor."""

    transform: HeadModule
    bias: str


_OF_ROBERTA = HeadModule("lm_head.dense", "GELU", norm="lm_head.layer_norm", norm_bias=True)
_VOCABULARY_HEADS = {
    "BertForMaskedLM": VocabularyHead(
        HeadModule(
            "cls.predictions.transform.dense",
            "GELU",
            norm="cls.predictions.transform.LayerNorm",
            norm_bias=True,
        ),
        "cls.predictions.bias",
    ),
    "DistilBertForMaskedLM": VocabularyHead(
        HeadModule("vocab_transform", "GELU", norm="vocab_layer_norm", norm_bias=True),
        "vocab_projector.bias",
    ),
    "ModernBertForMaskedLM": VocabularyHead(
        HeadModule("head.dense", "GELU", norm="head.norm"), "decoder.bias"
    ),
    "RobertaForMaskedLM": VocabularyHead(_OF_ROBERTA, "lm_head.bias"),
    "XLMRobertaForMaskedLM": VocabularyHead(_OF_ROBERTA, "lm_head.bias"),
}
_ACTIVATION_FIELDS = {
    "DistilBertForMaskedLM": "activation",
    "ModernBertForMaskedLM": "classifier_activation",
}
"""Fields of config.json that name the activation of the transform, where it is not `hidden_act`."""


def vocabulary_head(config: dict[str, Any]) -> VocabularyHead | None:
    """Returns what predicts the tokens of a config.json's architecture; None: nothing, or nothing that is
    known. Raises StartupError."""
    names = config.get("architectures")
    names = names if isinstance(names, list) else []
    name = next((each for each in names if each in _VOCABULARY_HEADS), "")
    is_modern = name == "ModernBertForMaskedLM"
    field = _ACTIVATION_FIELDS.get(name, "hidden_act")
    has_gelu = name.endswith("RobertaForMaskedLM") or config.get(field, "gelu") == "gelu"
    has_bias = config.get("decoder_bias", True) is True
    if not (name and has_gelu and has_bias and config.get("tie_word_embeddings", True) is True):
        return None
    field, default = ("norm_eps", 1e-5) if is_modern else ("layer_norm_eps", 1e-12)
    head, eps = _VOCABULARY_HEADS[name], config.get(field, default)
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise StartupError(WHAT, f"config.json: {field} is not a number between 0 and 1")
    transform = replace(head.transform, norm_eps=eps)
    if is_modern:
        biases = [config.get(each, False) is True for each in ("classifier_bias", "norm_bias")]
        transform = replace(transform, bias=biases[0], norm_bias=biases[1])
    return replace(head, transform=transform)
