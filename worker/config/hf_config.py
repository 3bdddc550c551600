"""What config.json and generation_config.json say, as frozen dataclasses.

Every value is checked where it is read; what is missing, of the wrong type or senseless is a
StartupError that names the field. Both generations of spellings are read: `torch_dtype`,
`rope_theta` and `rope_scaling` as well as `dtype` and `rope_parameters`. Nothing here needs torch.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewire.checkpoint_files import read_object
from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf
from worker.config.gguf import read_gguf_config

WHAT = "cannot load the model's configuration"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "swish")
"""Those of kernels.ops.layers.activation, which needs torch to be imported."""
QUANT_METHODS = ("awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq")
"""Formats of quantized weights: those of worker.weights.formats.registry."""
MOST = 2**31 - 1
"""No number of a model is larger; what is computed of them then fits everywhere."""
MAX_LAYERS = 4096
_LARGEST = 1e30
"""Of all that may have a fraction: far from where sums and products end."""
_SHOWN = 100
"""Characters of a value that an error quotes."""


class Fields:
    """A JSON object whose values are checked when they are read. Null counts as absent."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values, self._where = values, where

    def __contains__(self, name: str) -> bool:
        """True if the field is there, even if null."""
        return name in self._values

    def has(self, name: str) -> bool:
        """True if the field has a value."""
        return self._values.get(name) is not None

    def integer(self, name: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """Returns an integer from `least` to `most`."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(name, f"must be an integer of at least {least}")
        if value > most:
            raise self.wrong(name, f"must be at most {most}")
        return value

    def number(self, name: str, default: float | None = None, above: float = 0.0) -> float:
        """Returns a finite number greater than `above`."""
        value = self._get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _LARGEST:
            raise self.wrong(name, "must be a number")
        if value <= above:
            raise self.wrong(name, f"must be greater than {above:g}")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Returns a list of finite numbers greater than 0."""
        value = self._get(name, None)
        if not isinstance(value, list) or not all(
            isinstance(entry, int | float) and 0 < entry <= _LARGEST for entry in value
        ):
            raise self.wrong(name, "must be a list of numbers greater than 0")
        return tuple(map(float, value))

    def boolean(self, name: str, default: bool) -> bool:
        """Returns a boolean."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "must be a string")
        return value

    def texts(self, name: str) -> list[str]:
        """Returns a list of strings."""
        value = self._get(name, None)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.wrong(name, "must be a list of strings")
        return value

    def object(self, name: str) -> "Fields":
        """Returns an object; an empty one if absent."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "must be an object")
        return Fields(value, f"{self._where}, {name}")

    def names(self) -> list[str]:
        """Returns the names of all fields."""
        return list(self._values)

    def integers(self, name: str) -> tuple[int, ...]:
        """Returns a list of integers of at least 1."""
        value = self._get(name, None)
        if not isinstance(value, list) or not all(
            isinstance(entry, int) and not isinstance(entry, bool) and 0 < entry <= MOST for entry in value
        ):
            raise self.wrong(name, "must be a list of integers of at least 1")
        return tuple(value)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Returns token ids, of one id or a list; none if absent."""
        value = self._get(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self.wrong(name, "must be a token id or a list of token ids")
        return tuple(ids)

    def wrong(self, name: str, why: str) -> StartupError:
        """Returns the error to raise for one field."""
        value = json.dumps(self._values.get(name))
        shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
        return StartupError(WHAT, f"{self._where}: {name} is {shown}, but {why}")

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        value = default if value is None else value
        if value is None:
            raise StartupError(WHAT, f"{self._where} has no field {name}")
        return value


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """How positions become angles. Fields after `kind` are None if the kind does not use them."""

    theta: float
    kind: str  # "default", "linear", "dynamic", "llama3", "yarn" or "divided"
    factor: float = 1.0
    original_max_position: int = 0  # context length before scaling
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn: factor of cos and sin
    truncate: bool = True  # yarn: round the bounds of the ramp
    divisors: tuple[float, ...] = ()  # divided: of each frequency


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The configuration that all families share; each adds its own fields."""

    architecture: str
    dtype: str | None  # None: not said; then it is that of the weights
    eos_token_ids: tuple[int, ...]
    tied: bool  # the output head is the embedding
    vocab_size: int  # V
    hidden_size: int  # E
    num_layers: int
    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # D
    max_position: int  # context length of the model
    windows: tuple[int | None, ...]  # by layer: tokens that a query sees; None: all

    @property
    def depends_on_prompt_len(self) -> bool:
        """True if keys and values of a token depend on the length of its whole prompt."""
        return False


def read_config(folder: Path) -> Fields:
    """Reads config.json of a folder, or what stands for it in a GGUF file. Raises StartupError."""
    if is_gguf(folder):
        return Fields(read_gguf_config(folder), folder.name)
    fields = Fields(_read(folder, "config.json", required=True), "config.json")
    read_quantization(fields)
    return fields


def read_quantization(fields: "Fields") -> "Fields | None":
    """Returns the quantization_config of a config.json, with a `quant_method` that is known; None if there is
    none. Raises StartupError."""
    if not fields.has("quantization_config"):
        return None
    settings = fields.object("quantization_config")
    if settings.text("quant_method") not in QUANT_METHODS:
        raise settings.wrong("quant_method", f"only these are known: {', '.join(QUANT_METHODS)}")
    return settings


def read_eos_token_ids(folder: Path, config: Fields) -> tuple[int, ...]:
    """Returns the tokens that end a sequence according to either file, in ascending order.

    Ids outside the vocabulary (a family's default in a smaller model) cannot occur and are left out.
    """
    name = "generation_config.json"
    generation = Fields({} if is_gguf(folder) else _read(folder, name, required=False), name)
    ids = {*config.token_ids("eos_token_id"), *generation.token_ids("eos_token_id")}
    return tuple(sorted(i for i in ids if i < config.integer("vocab_size")))


def common_fields(fields: Fields, architecture: str, eos_token_ids: tuple[int, ...]) -> dict[str, Any]:
    """Reads the fields of ModelConfig whose names all families share."""
    return {
        "architecture": architecture,
        "dtype": _dtype(fields),
        "eos_token_ids": eos_token_ids,
        "vocab_size": fields.integer("vocab_size"),
    }


def head_fields(fields: Fields, head_dim: int | None = None) -> dict[str, int]:
    """Reads the hidden size and heads under the names that most families use. head_dim: the family's
    default."""
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise fields.wrong("num_key_value_heads", f"must divide num_attention_heads ({num_heads})")
    if not fields.has("head_dim") and head_dim is None and hidden_size % num_heads:
        raise fields.wrong("num_attention_heads", f"must divide hidden_size ({hidden_size})")
    return {
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": fields.integer("head_dim", head_dim or hidden_size // num_heads),
    }


def read_activation(fields: Fields, name: str, default: str) -> str:
    """Reads the name of a function of kernels.ops.layers.activation."""
    activation = fields.text(name, default)
    if activation not in ACTIVATIONS:
        raise fields.wrong(name, f"only these are known: {', '.join(ACTIVATIONS)}")
    return activation


def read_rope(fields: Fields, max_position: int, head_dim: int) -> RopeConfig:
    """Reads rotary parameters, under their current or older names."""
    if head_dim % 2 or head_dim < 4:
        raise StartupError(
            WHAT, f"config.json: the head size is {head_dim}, which rotary positions cannot halve"
        )
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    rope = fields.object(name)
    theta = (rope if rope.has("rope_theta") else fields).number("rope_theta", 10_000.0, above=1.0)
    kind = rope.text("rope_type", rope.text("type", "default"))
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise rope.wrong("partial_rotary_factor", "only 1.0 is supported")
    if kind == "default":
        return RopeConfig(theta=theta, kind=kind)
    if kind == "divided":
        return RopeConfig(theta=theta, kind=kind, divisors=_rope_divisors(rope, head_dim))
    if kind not in ("linear", "dynamic", "llama3", "yarn"):
        field = "rope_type" if rope.has("rope_type") else "type"
        raise rope.wrong(field, "only default, linear, dynamic, llama3 and yarn are supported")
    factor = rope.number("factor")
    if factor < 1:
        raise rope.wrong("factor", "must be at least 1")
    if kind in ("linear", "dynamic"):
        return RopeConfig(theta=theta, kind=kind, factor=factor, original_max_position=max_position)
    original = rope.integer("original_max_position_embeddings", max_position)
    if kind == "yarn":
        return RopeConfig(
            theta=theta,
            kind=kind,
            factor=factor,
            original_max_position=original,
            beta_fast=rope.number("beta_fast", 32.0),
            beta_slow=rope.number("beta_slow", 1.0),
            attention_factor=_yarn_attention_factor(rope, factor),
            truncate=rope.boolean("truncate", True),
        )
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.wrong("high_freq_factor", "must be greater than low_freq_factor")
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        original_max_position=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _rope_divisors(rope: Fields, head_dim: int) -> tuple[float, ...]:
    """Reads a divisor for each frequency, which GGUF files have."""
    divisors = rope.numbers("divisors")
    if len(divisors) != head_dim // 2:
        raise rope.wrong("divisors", f"must have {head_dim // 2} numbers, half the head size")
    return divisors


def scaled_max_position(rope: RopeConfig, max_position: int) -> int:
    """Returns the context length with scaling. llama3 checkpoints state the scaled length, the others do
    not."""
    length = max_position
    if rope.kind in ("linear", "dynamic"):
        length = int(max_position * rope.factor)
    elif rope.kind == "yarn":
        length = max(max_position, int(rope.original_max_position * rope.factor))
    if length > MOST:
        raise StartupError(WHAT, f"config.json: a factor of {rope.factor:g} makes the context too long")
    return length


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    if rope.has("attention_factor"):
        return rope.number("attention_factor")

    def growth(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.has("mscale") and rope.has("mscale_all_dim"):
        return growth(rope.number("mscale")) / growth(rope.number("mscale_all_dim"))
    return growth(1.0)


def _dtype(fields: Fields) -> str | None:
    name = "dtype" if fields.has("dtype") else "torch_dtype"
    if not fields.has(name):
        return None
    text = fields.text(name).removeprefix("torch.")
    if text not in DTYPE_BYTES:
        raise fields.wrong(name, f"only these are supported: {', '.join(DTYPE_BYTES)}")
    return text


def _read(folder: Path, name: str, *, required: bool) -> dict[str, Any]:
    values = read_object(folder, name, WHAT)
    if values is None and required:
        raise StartupError(WHAT, f"{folder} holds no {name}")
    return values or {}
