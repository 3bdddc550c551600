"""How a checkpoint makes one vector of a prompt: as the files of sentence-transformers say, or a flag.

modules.json             Transformer, Pooling, and Normalize or not
1_Pooling/config.json    the folder is named in modules.json
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewire.checkpoints.files import read_object, read_whole
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, POOLING_TYPE_MEAN, PoolingType

WHAT = "cannot embed with this checkpoint"
REMEDY = "--pooling-type last or mean embeds without Dense modules; none serves it without embeddings"
MODULES_FILE = "modules.json"
TYPES: dict[str, PoolingType] = {"last": POOLING_TYPE_LAST, "mean": POOLING_TYPE_MEAN}
_MODES: dict[str, PoolingType] = {"lasttoken": POOLING_TYPE_LAST, "mean": POOLING_TYPE_MEAN}
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
    """normalize: unless a request says otherwise."""

    type: PoolingType
    normalize: bool


def read_pooling(folder: Path, wanted: str) -> PoolingDefaults | None:
    """Returns how the checkpoint pools; None: it makes no embeddings. wanted: --pooling-type. Raises
    StartupError, also for modules that are not known."""
    if wanted in TYPES:
        return PoolingDefaults(TYPES[wanted], normalize=True)
    modules = _read_modules(folder) if wanted == "auto" and folder.is_dir() else []
    if not modules:
        return None
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        why = f"{MODULES_FILE}: {', '.join(kinds)} is not Transformer, Pooling, and Normalize or not"
        raise StartupError(WHAT, why, REMEDY)
    return PoolingDefaults(_read_type(folder, modules[1][1]), normalize="Normalize" in kinds)


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """Returns the last word of each module's type, and its path, in their order."""
    content = read_whole(folder, MODULES_FILE, WHAT)
    if content is None:
        return []
    try:
        modules = json.loads(content)
        return [(str(each["type"]).rpartition(".")[2], str(each.get("path", ""))) for each in modules]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = f"{MODULES_FILE} is not a list of modules: {type(error).__name__}"
        raise StartupError(WHAT, why, REMEDY) from None


def _read_type(folder: Path, path: str) -> PoolingType:
    name = f"{path}/config.json"
    fields = read_object(folder, name, WHAT)
    if fields is None:
        raise StartupError(WHAT, f"{name}, which {MODULES_FILE} names, is not there", REMEDY)
    modes = _modes(fields)
    if len(modes) != 1 or modes[0] not in _MODES:
        known = " and ".join(_MODES)
        why = f"{name}: pooling by {', '.join(modes) or 'nothing'} is not known for a decoder; {known} are"
        raise StartupError(WHAT, why, REMEDY)
    if fields.get("include_prompt") is False and _MODES[modes[0]] == POOLING_TYPE_MEAN:
        raise StartupError(WHAT, f"{name}: include_prompt = false is not supported", REMEDY)
    return _MODES[modes[0]]


def _modes(fields: dict[str, Any]) -> list[str]:
    stated = fields.get("pooling_mode")
    if stated is not None:
        return [str(each) for each in (stated if isinstance(stated, list) else [stated])]
    return [mode for name, mode in _FLAGS.items() if fields.get(name) is True]
