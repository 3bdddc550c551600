"""What config.json and generation_config.json say, as frozen dataclasses.

Every value is checked where it is read; what is missing, of the wrong type or senseless is a
StartupError that names the field. Both generations of spellings are read: `torch_dtype`,
`rope_theta` and `rope_scaling` as well as `dtype` and `rope_parameters`. Nothing here needs torch.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pagewire.checkpoints.files import config_overrides, read_object
from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf
from worker.config.audio import AudioConfig
from worker.config.gguf import read_gguf_config
from worker.config.vision import VisionConfig

WHAT = "cannot load the model's configuration"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "swish")
"""Those of kernels.ops.layers.activation, which needs torch to be imported."""
QUANT_METHODS = ("awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq", "mxfp4")
"""Formats of quantized weights: those of worker.weights.open."""
NATIVE = "native"
"""A family of worker.families computes the model."""
MOST = 2**31 - 1
"""No number of a model is larger; what is computed of them then fits everywhere."""
MAX_SIZE = 1 << 20
"""No dimension of a tensor is larger, in any model."""
MAX_LAYERS = 4096
HARMLESS = frozenset(
    {
        *("architectures", "model_type", "transformers_version", "_name_or_path", "auto_map", "license"),
        *("_attn_implementation_autoset", "_attn_implementation", "attn_implementation", "name_or_path"),
        *("bos_token_id", "pad_token_id", "eos_token_id", "unk_token_id", "sep_token_id", "dtype"),
        *("torch_dtype", "use_cache", "initializer_range", "pretraining_tp", "return_dict"),
        *("output_attentions", "output_hidden_states", "chunk_size_feed_forward", "problem_type"),
        *("id2label", "label2id", "is_encoder_decoder", "is_decoder", "finetuning_task", "torchscript"),
        *("attention_dropout", "hidden_dropout", "residual_dropout", "resid_pdrop", "embd_pdrop"),
        *("embedding_dropout", "attn_pdrop", "dropout", "activation_dropout", "classifier_dropout"),
        *("cache_implementation", "use_return_dict", "tokenizer_class", "prefix", "gradient_checkpointing"),
        *("task_specific_params", "unsloth_fixed", "unsloth_version"),
        *("tie_encoder_decoder", "cross_attention_hidden_size", "add_cross_attention", "pruned_heads"),
        *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "temperature", "top_k"),
        *("top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
        *("num_beam_groups", "diversity_penalty", "encoder_no_repeat_ngram_size", "bad_words_ids"),
        *("num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id"),
        *("forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens", "decoder_start_token_id", "tf_legacy_loss"),
        *("use_bfloat16", "trust_remote_code", "custom_pipelines"),
    }
)
"""Fields of config.json that change nothing that a decoder computes, for all families: names, dropouts of
training, labels of classifiers, and settings of generation, which generation_config.json has today."""
_LARGEST = 1e30
"""Of all that may have a fraction: far from where sums and products end."""
_SHOWN = 100
"""Characters of a value that an error quotes."""


class Fields:
    """A JSON object whose values are checked when they are read. Null counts as absent."""

    def __init__(
        self, values: dict[str, Any], where: str, sizes: "list[tuple[Fields, str, int]] | None" = None
    ) -> None:
        """sizes: of the object that this one is in."""
        self._values, self._where = values, where
        self.sizes: list[tuple[Fields, str, int]] = [] if sizes is None else sizes
        """Fields that say a dimension of tensors, with their names and factors: see Capacity.of()."""
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """True if the field is there, even if null."""
        self._read.add(name)
        return name in self._values

    def has(self, name: str) -> bool:
        """True if the field has a value."""
        self._read.add(name)
        return self._values.get(name) is not None

    def value(self, name: str) -> Any:
        """Returns the value of a field as it stands; None if absent."""
        self._read.add(name)
        return self._values.get(name)

    def expect(self, name: str, value: Any, why: str = "nothing else is supported") -> None:
        """Raises StartupError if the field is there with another value than the only one supported."""
        if self.has(name) and self._values[name] != value:
            raise self.wrong(name, why)

    def refuse_unknown(self, harmless: Collection[str]) -> None:
        """Raises StartupError for a field with a value that nothing has read, unless it is harmless: it may
        change results."""
        for name in sorted(self._values.keys() - self._read - set(harmless)):
            if self.has(name):
                raise self.wrong(name, "this field is not known here, and may change what the model computes")

    def integer(
        self, name: str, default: int | None = None, least: int = 1, most: int = MAX_SIZE, times: int = 1
    ) -> int:
        """Returns an integer from `least` to `most`. Unless `most` is more than MAX_SIZE, it is a dimension
        of a tensor, divided by `times`."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(name, f"must be an integer of at least {least}")
        if value > (most if self.has(name) else MOST):
            raise self.wrong(name, f"must be at most {most}")
        if most <= MAX_SIZE and self.has(name):
            self.sizes.append((self, name, times))
            self.check_size(name, times, MAX_SIZE, f"{MAX_SIZE}")
        return value

    def check_size(self, name: str, times: int, most: int, what: str) -> None:
        """Raises StartupError where so many times an integer is more than `most`: what that is."""
        if self._values[name] * times > most:
            many = f"{times} times that" if times > 1 else "that"
            raise self.wrong(name, f"{many} is more than {what}")

    def number(self, name: str, default: float | None = None, above: float = 0.0) -> float:
        """Returns a finite number greater than `above`."""
        value = self._get(name, default)
        if not _is_number(value):
            raise self.wrong(name, "must be a number")
        if value <= above:
            raise self.wrong(name, f"must be greater than {above:g}")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Returns a list of finite numbers greater than 0."""
        what = "numbers greater than 0"
        return tuple(map(float, self._list(name, what, lambda entry: _is_number(entry) and entry > 0)))

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
        return self._list(name, "strings", lambda entry: isinstance(entry, str))

    def object(self, name: str) -> "Fields":
        """Returns an object; an empty one if absent."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "must be an object")
        return Fields(value, f"{self._where}, {name}", self.sizes)

    def below(self, name: str, *shared: str, defaults: Mapping[str, Any] = MappingProxyType({})) -> "Fields":
        """Returns the object of that name, in which this one's `shared` fields stand in place of its own.
        defaults: of fields that are in neither."""
        nested, own = self.object(name), {each: self._values[each] for each in shared if self.has(each)}
        return Fields({**defaults} | nested._values | own, nested._where, self.sizes)

    def names(self) -> list[str]:
        """Returns the names of all fields."""
        return list(self._values)

    def integers(self, name: str, least: int = 1) -> tuple[int, ...]:
        """Returns a list of integers of at least `least`."""
        what = f"integers of at least {least}"
        return tuple(self._list(name, what, lambda entry: type(entry) is int and least <= entry <= MOST))

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Returns token ids, of one id or a list; none if absent."""
        value = self._get(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(token) is int and token >= 0 for token in ids):
            raise self.wrong(name, "must be a token id or a list of token ids")
        return tuple(ids)

    def _list(self, name: str, what: str, is_fit: Callable[[Any], bool]) -> list[Any]:
        value = self._get(name, None)
        if not isinstance(value, list) or not all(map(is_fit, value)):
            raise self.wrong(name, f"must be a list of {what}")
        return value

    def wrong(self, name: str, why: str) -> StartupError:
        """Returns the error to raise for one field."""
        value = json.dumps(self._values.get(name))
        shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
        return StartupError(WHAT, f"{self._where}: {name} is {shown}, but {why}")

    def _get(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self._values.get(name)
        value = default if value is None else value
        if value is None:
            raise StartupError(WHAT, f"{self._where} has no field {name}")
        return value


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The configuration that all families share; each adds its own fields."""

    architecture: str
    dtype: str | None  # None: not said; then it is that of the weights
    eos_token_ids: tuple[int, ...]
    eos_origins: tuple[str, ...] = ()  # the files that name each
    tied: bool  # the output head is the embedding
    classifies: bool = False  # a classifier is in the place of the output head
    vocab_size: int  # V
    hidden_size: int  # E
    num_layers: int
    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # D
    max_position: int  # context length of the model
    windows: tuple[int | None, ...]  # by layer: tokens that a query sees; None: all
    bidirectional: bool = False  # a query sees as far ahead as back: prompts are computed in one step
    whole_images: tuple[bool, ...] = ()  # by layer: tokens of an image see all of it; empty: in no layer
    chunked: bool = False  # windows are chunks: a query sees those of its own chunk of so many tokens
    vision: VisionConfig | AudioConfig | None = (
        None  # of the encoder of images, or of sounds; None: it has none
    )
    decoder: str = ""  # architecture of the decoder that an encoder stands beside; empty: the model is it
    sizes: list[tuple[Fields, str, int]] = field(default_factory=list, compare=False, repr=False)

    @property
    def kv_values(self) -> int:
        """Values that a layer keeps of a token in the KV cache."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def pair_values(self) -> int:
        """Products of a head for a token and a position that it attends to."""
        return 2 * self.head_dim

    @property
    def state_size(self) -> int:
        """Elements of a hidden state behind the last norm."""
        return self.hidden_size

    @property
    def input_embedding_size(self) -> int:
        """Elements of a value that may stand in place of a token; 0: the model needs token ids."""
        return 0

    @property
    def has_states(self) -> bool:
        """True if layers keep a state per sequence, which holds all of its tokens and cannot go back."""
        return False

    @property
    def depends_on_prompt_len(self) -> bool:
        """True if keys and values of a token depend on the length of its whole prompt."""
        return False

    @property
    def implementation(self) -> str:
        """What computes the model: "native", or the name and version of a library whose code does."""
        return NATIVE


def read_config(folder: Path, overrides: str = "") -> Fields:
    """Reads config.json of a folder, or what stands for it in a GGUF file. overrides: a JSON object with
    fields that go before those of config.json; "": none. Raises StartupError."""
    if is_gguf(folder):
        if overrides:
            raise StartupError(
                "cannot use --hf-overrides", f"{folder.name} has no config.json", "leave it out"
            )
        return Fields(read_gguf_config(folder), folder.name)
    values = _read(folder, "config.json", required=True) | config_overrides(overrides)
    fields = Fields(values, "config.json with --hf-overrides" if overrides else "config.json")
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


def common_fields(fields: Fields, architecture: str, ends: Mapping[int, str]) -> dict[str, Any]:
    """Reads the fields of ModelConfig whose names all families share. ends: as read_ends() returns them."""
    return {
        "architecture": architecture,
        "dtype": _dtype(fields),
        "eos_token_ids": tuple(ends),
        "eos_origins": tuple(ends.values()),
        "vocab_size": fields.integer("vocab_size"),
        "sizes": fields.sizes,
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
        "head_dim": fields.integer("head_dim", head_dim or hidden_size // num_heads, times=num_heads),
    }


def read_activation(fields: Fields, name: str, default: str) -> str:
    """Reads the name of a function of kernels.ops.layers.activation."""
    activation = fields.text(name, default)
    if activation not in ACTIVATIONS:
        raise fields.wrong(name, f"only these are known: {', '.join(ACTIVATIONS)}")
    return activation


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


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
