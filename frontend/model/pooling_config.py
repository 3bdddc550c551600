"""How a checkpoint makes one vector of a prompt: as the files of sentence-transformers say, or a flag.
Prompts and lengths of texts are in text_defaults.py.

modules.json             Transformer, Pooling, any number of Dense, and Normalize or not; of PyLate (ColBERT)
                         Transformer and Dense, for vectors of tokens; for sparse vectors SpladePooling behind
                         MLMTransformer, or Transformer
1_Pooling/config.json    the folder is named in modules.json; likewise 1_SpladePooling
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frontend.model.text_defaults import TextDefaults, read_text_defaults
from pagewire.checkpoints.files import read_object
from pagewire.checkpoints.heads import (
    DENSE,
    MODULES_FILE,
    REMEDY,
    VOCABULARY,
    WHAT,
    read_dense,
    read_modules,
)
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_ALL,
    POOLING_TYPE_CLS,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MAX,
    POOLING_TYPE_MEAN,
    POOLING_TYPE_WEIGHTED_MEAN,
    ModelFacts,
    PoolingType,
)
from pagewire.v1.pooling_pb2 import (
    EMBEDDING_KIND_SPARSE,
    EMBEDDING_KIND_TOKENS,
    EMBEDDING_KIND_UNSPECIFIED,
    EmbeddingKind,
)

TYPES: dict[str, PoolingType] = {
    "last": POOLING_TYPE_LAST,
    "mean": POOLING_TYPE_MEAN,
    "cls": POOLING_TYPE_CLS,
    "max": POOLING_TYPE_MAX,
    "weightedmean": POOLING_TYPE_WEIGHTED_MEAN,
}
"""By the names of --pooling-type."""
_MODES = {**TYPES, "lasttoken": POOLING_TYPE_LAST}
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Fields of files that are older than `pooling_mode`."""


@dataclass(frozen=True, slots=True)
class PoolingDefaults:
    """normalize: unless a request says otherwise. head: as Pooling.head. texts: before they are tokenized.
    only: the one kind of vectors that there is; UNSPECIFIED: texts and tokens have vectors."""

    type: PoolingType
    normalize: bool
    head: int = 0
    texts: TextDefaults = field(default_factory=TextDefaults)
    only: EmbeddingKind = EMBEDDING_KIND_UNSPECIFIED

    @property
    def of_texts(self) -> bool:
        """Whether a text has one vector."""
        return self.only == EMBEDDING_KIND_UNSPECIFIED

    def problem(self, kind: EmbeddingKind) -> str | None:
        """Returns why there are no vectors of a kind; None: there are."""
        if kind == self.only or (self.of_texts and kind == EMBEDDING_KIND_TOKENS):
            return None
        if self.only == EMBEDDING_KIND_SPARSE:
            return "the checkpoint makes sparse vectors alone: EMBEDDING_KIND_SPARSE"
        if self.only == EMBEDDING_KIND_TOKENS:
            return "the checkpoint makes vectors of tokens alone: EMBEDDING_KIND_TOKENS, /pooling over HTTP"
        return "the checkpoint makes no sparse vectors: they need --pooling-type splade, or its modules.json"

    def size(self, facts: ModelFacts) -> int:
        """Returns the elements of a vector; 0: the engine makes none."""
        if not self.head:
            return facts.embedding_size
        return facts.head_sizes[self.head - 1] if self.head <= len(facts.head_sizes) else 0


def read_pooling(folder: Path, wanted: str) -> PoolingDefaults | None:
    """Returns how the checkpoint pools; None: it makes no embeddings. wanted: --pooling-type. Raises
    StartupError, also for modules that are not known."""
    if wanted in TYPES:
        return PoolingDefaults(TYPES[wanted], normalize=True, texts=read_text_defaults(folder, ""))
    if wanted == "splade":
        return _splade(read_text_defaults(folder, ""))
    modules = read_modules(folder) if wanted == "auto" else []
    kinds = [kind for kind, _ in modules]
    if kinds in ([], ["Transformer"], ["Transformer", "LogitScore"]):  # the last two are cross-encoders
        return None
    dense = read_dense(folder)
    if dense and kinds == ["Transformer", *["Dense"] * len(dense)]:
        texts = read_text_defaults(folder, modules[0][1])
        return PoolingDefaults(POOLING_TYPE_ALL, True, DENSE, texts, EMBEDDING_KIND_TOKENS)
    if kinds in (["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]):
        _check_splade(folder, modules[1][1])
        return _splade(read_text_defaults(folder, modules[0][1]))
    expected = ["Transformer", "Pooling", *["Dense"] * len(dense)]
    if kinds not in (expected, [*expected, "Normalize"]):
        known = "Transformer, Pooling, any number of Dense, and Normalize or not"
        raise StartupError(WHAT, f"{MODULES_FILE}: {', '.join(kinds)} is not {known}", REMEDY)
    kind, head = _read_type(folder, modules[1][1]), DENSE if dense else 0
    texts = read_text_defaults(folder, modules[0][1])
    return PoolingDefaults(kind, normalize="Normalize" in kinds, head=head, texts=texts)


def _splade(texts: TextDefaults) -> PoolingDefaults:
    return PoolingDefaults(POOLING_TYPE_MAX, False, VOCABULARY, texts, EMBEDDING_KIND_SPARSE)


def _check_splade(folder: Path, path: str) -> None:
    """Raises StartupError for other ways to make sparse vectors."""
    fields = _read_fields(folder, f"{path}/config.json")
    for name, known in (("pooling_strategy", "max"), ("activation_function", "relu")):
        if (value := fields.get(name, known)) != known:
            raise StartupError(WHAT, f"{path}/config.json: {name} {value!r} is not known; {known} is")


def _read_fields(folder: Path, name: str) -> dict[str, Any]:
    """Returns the fields of a module's file. Raises StartupError."""
    fields = read_object(folder, name, WHAT)
    if fields is None:
        raise StartupError(WHAT, f"{name}, which {MODULES_FILE} names, is not there", REMEDY)
    return fields


def _read_type(folder: Path, path: str) -> PoolingType:
    name = f"{path}/config.json"
    fields = _read_fields(folder, name)
    modes = _modes(fields)
    if len(modes) != 1 or modes[0] not in _MODES:
        known = ", ".join(_MODES)
        why = f"{name}: pooling by {', '.join(modes) or 'nothing'} is not known; {known} are"
        raise StartupError(WHAT, why, REMEDY)
    if fields.get("include_prompt") is False and _MODES[modes[0]] != POOLING_TYPE_LAST:
        raise StartupError(WHAT, f"{name}: include_prompt = false is not supported", REMEDY)
    return _MODES[modes[0]]


def _modes(fields: dict[str, Any]) -> list[str]:
    stated = fields.get("pooling_mode")
    if stated is not None:
        return [str(each) for each in (stated if isinstance(stated, list) else [stated])]
    return [mode for name, mode in _FLAGS.items() if fields.get(name) is True]
