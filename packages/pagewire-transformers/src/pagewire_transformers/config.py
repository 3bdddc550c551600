"""What `transformers` says of a checkpoint that it will compute. It is imported when a configuration is
read."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagewire.errors import StartupError, install_hint
from pagewire.gguf.header import is_gguf
from pagewire.internal.v1 import worker_pb2
from pagewire_transformers.refusals import first_line
from worker.config.ends import read_ends
from worker.config.hf_config import MAX_LAYERS, MAX_SIZE, WHAT, Fields, common_fields, read_config
from worker.exactness import Exactness
from worker.startup.implementation import ForeignConfig

if TYPE_CHECKING:
    import torch

    from pagewire_transformers.model import TransformersModel

logger = logging.getLogger(__name__)
_SIZES = (
    *("hidden_size", "intermediate_size", "vocab_size", "ffn_dim", "_heads", "_layers", "_experts", "_rank"),
    *("head_dim", "n_embd", "n_inner", "n_layer", "n_head", "d_model", "d_ff"),
)
"""Ends of the names of fields that are dimensions of tensors, or count what has tensors."""
_REMOTE = "AutoModelForCausalLM"
"""The entry of `auto_map` that names a checkpoint's own modelling code."""


@dataclass(frozen=True, kw_only=True)
class TransformersConfig(ForeignConfig):
    """A decoder that `transformers` computes. Its KV heads, head sizes and windows are found by a probe,
    layer by layer; those here are what heads of equal size would be."""

    hf: Any  # transformers.PreTrainedConfig

    @property
    def implementation(self) -> str:
        from transformers import __version__

        return f"transformers {__version__}"

    def load(
        self,
        initialize: worker_pb2.Initialize,
        choose: "Callable[[torch.dtype], torch.dtype]",
        progress: Callable[[float], None],
    ) -> "tuple[TransformersModel, torch.dtype]":
        from pagewire_transformers.load import load_transformers  # imports torch

        return load_transformers(self, initialize, choose, progress)

    def exactness(self, products: Exactness) -> Exactness:
        caveat = "transformers' code sums by torch, whose order depends on the number of tokens in a step"
        return Exactness(f"{self.implementation}, {products.arithmetic}", caveat)


def read_transformers_config(folder: Path, trust_remote_code: bool) -> TransformersConfig:
    """Reads config.json as `transformers` does. Raises StartupError, also where transformers is missing, does
    not know the architecture, or would run code of the checkpoint without permission."""
    if is_gguf(folder):
        raise StartupError(
            WHAT, "transformers' code does not read GGUF files here", "use --model-impl native"
        )
    fields = read_config(folder)
    _note_sizes(fields)
    architecture = _architecture(fields, trust_remote_code)
    hf = _auto_config(folder, trust_remote_code)
    _check_kind(fields, hf)
    layers, heads = _integer(fields, hf, "num_hidden_layers"), _integer(fields, hf, "num_attention_heads")
    hidden = _integer(fields, hf, "hidden_size")
    return TransformersConfig(
        **common_fields(fields, architecture, read_ends(folder, fields)),
        tied=bool(getattr(hf, "tie_word_embeddings", False)),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        max_position=_integer(fields, hf, "max_position_embeddings"),
        windows=(None,) * layers,
        hf=hf,
    )


def _note_sizes(fields: Fields) -> None:
    """Has fields whose names say sizes compared with the checkpoint (worker.weights.sizes) before the code of
    a model makes anything of them. Raises StartupError."""
    for name in fields.names():
        value = fields.value(name)
        if name.endswith(_SIZES) and type(value) is int and value > 0:
            fields.integer(name, most=MAX_LAYERS if name.endswith(("_layers", "n_layer")) else MAX_SIZE)


def _architecture(fields: Fields, trust_remote_code: bool) -> str:
    """Returns the first architecture that transformers, or the checkpoint's own code, has as a language
    model."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as known
    except ModuleNotFoundError as error:
        hint = install_hint("transformers")
        raise StartupError(
            WHAT, f"no family here has this architecture, and {error.name} is not installed", hint
        ) from error
    names = fields.texts("architectures")
    flat = {name for entry in known.values() for name in ((entry,) if isinstance(entry, str) else entry)}
    own = fields.object("auto_map").names() if fields.has("auto_map") else []
    for name in names:
        if name in flat:
            return name
    if names and _REMOTE in own:
        if trust_remote_code:
            logger.warning("the worker runs code of the checkpoint, as --trust-remote-code permits")
            return names[0]
        raise StartupError(
            WHAT,
            f"config.json: architecture {names[0]} needs Python code that the checkpoint brings",
            "read that code, then add --trust-remote-code",
        )
    unknown = ", ".join(names) or "list is empty"
    raise StartupError(
        WHAT,
        f"config.json: architecture {unknown} is no language model of transformers",
        "docs/models.md lists what is served, such as LlamaForCausalLM",
    )


def _auto_config(folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # of many kinds: checks of fields by a hundred classes
        raise StartupError(WHAT, f"transformers refuses config.json: {first_line(error)}") from error


def _check_kind(fields: Fields, hf: Any) -> None:
    """Raises StartupError for what is no decoder of tokens alone, and for packed weights."""
    why = ""
    if getattr(hf, "is_encoder_decoder", False):
        why = "it is an encoder with a decoder"
    elif hf.get_text_config() is not hf:
        why = "its configuration has parts for other inputs than text"
    elif fields.has("quantization_config"):
        why = "packed weights are unpacked for native families only"
    if why:
        raise StartupError(WHAT, f"transformers' code cannot compute {hf.model_type} here: {why}")


def _integer(fields: Fields, hf: Any, name: str) -> int:
    """Returns a field under the name that all configurations of transformers share."""
    value = getattr(hf, name, None)
    if not isinstance(value, int) or value < 1:
        raise StartupError(
            WHAT, f"transformers gives {hf.model_type} {name} = {json.dumps(value)}; it must be at least 1"
        )
    return value
