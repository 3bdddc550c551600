"""Reads adapter_config.json as peft writes it, and judges each field by its value.

peft writes all fields, most of them with values that change nothing. A field that is not known may be there
as long as it is off; otherwise it could change what the adapter computes, and the adapter is refused. Which
modules have an adapter is read from the tensors alone.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kernels.api import adapters
from worker.adapters.adapter import check_known, wrong_field
from worker.adapters.prompt_tuning import KINDS, read_num_virtual_tokens

MAX_ALPHA = 1 << 16
MAX_INVOCATION = 1024
"""Token ids that activate an adapter."""
MAX_PATTERNS = 4096
MAX_REPEATING = 16
"""Patterns that repeat something: each may cost time in proportion to the cube of a name's length."""
_MAX_PATTERN_LENGTH = 256

T = TypeVar("T")
Patterns = tuple[tuple[re.Pattern[str], T], ...]
"""Patterns of names of modules, each with what a module has that it matches; the first match counts."""

_READ = frozenset(
    {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "base_model_name_or_path"}
    | {"alora_invocation_tokens", "init_lora_weights"}
)
_OF_TENSORS = frozenset(
    {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "target_parameters"}
    | {"modules_to_save", "trainable_token_indices", "bias", "lora_bias"}
)
"""These say which tensors the file has, and each tensor is judged by itself."""
_OF_TRAINING = frozenset(
    {"auto_mapping", "corda_config", "ensure_weight_tying", "eva_config", "fan_in_fan_out", "inference_mode"}
    | {"loftq_config", "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core"}
    | {"peft_version", "qalora_group_size", "revision", "runtime_config", "task_type"}
)
"""These change nothing once an adapter is trained. A and B of a layer that is stored transposed are not."""
_REFUSED: Mapping[str, str] = {
    "use_dora": "DoRA scales rows by norms of the merged weight, which a quantized model does not have",
    "use_qalora": "QALoRA pools the inputs of its adapters",
    "use_bdlora": "the blocks of BD-LoRA are not read",
    "layer_replication": "the adapter repeats layers that the model has once",
    "arrow_config": "Arrow routes tokens among several adapters",
}
_OTHER_KINDS: Mapping[str, str] = {
    "PREFIX_TUNING": "trained keys and values of each layer are no tokens, which other rows could have",
    "MULTITASK_PROMPT_TUNING": "its virtual tokens depend on a task, which requests do not name",
    "IA3": "it scales what layers compute, rather than adding to it",
}
_SUPPORTED = f"LORA, {' and '.join(KINDS)} are supported"
_KEEP_BASE = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
"""Values of init_lora_weights that leave the base model's weights as they are."""


@dataclass(frozen=True)
class AdapterConfig:
    """The fields that count."""

    rank: int | None
    """None: that of each tensor."""
    alpha: float | None
    """None: all scales are 1."""
    rslora: bool = False
    ranks: Patterns[int] = ()
    alphas: Patterns[float] = ()
    invocation: tuple[int, ...] = ()
    base: str = ""
    num_virtual_tokens: int = 0
    """Of prompt tuning and P-tuning, which have nothing else."""

    def rank_of(self, module: str) -> int | None:
        """Returns the rank of a module of the base model, such as "model.layers.0.self_attn.q_proj"; None
        where it may have any."""
        return _first_match(self.ranks, module, self.rank)

    def scale_of(self, module: str, rank: int) -> float:
        """Returns alpha / r, or alpha / sqrt(r) with use_rslora."""
        alpha = _first_match(self.alphas, module, self.alpha)
        return 1.0 if alpha is None else alpha / (math.sqrt(rank) if self.rslora else rank)

    def is_named(self, name: str) -> bool:
        """Whether a pattern of ranks or alphas matches a name."""
        return any(pattern.match(name) for pattern, _ in (*self.ranks, *self.alphas))

    def canonical(self) -> bytes:
        """Returns the same bytes for all files whose fields that count are equal. The base's name does not
        count."""
        patterns = [[(each.pattern, value) for each, value in pairs] for pairs in (self.ranks, self.alphas)]
        virtual = [self.num_virtual_tokens] if self.num_virtual_tokens else []
        return json.dumps([self.rank, self.alpha, self.rslora, *patterns, self.invocation, *virtual]).encode()


def read_adapter_config(values: Mapping[str, Any]) -> AdapterConfig:
    """Returns the fields that count of an adapter_config.json. Raises AdapterError, which names the field."""
    kind, base = values.get("peft_type"), values.get("base_model_name_or_path")
    base = base if isinstance(base, str) else ""
    if kind in KINDS:
        return AdapterConfig(None, None, base=base, num_virtual_tokens=read_num_virtual_tokens(values))
    if kind != "LORA":
        why = _OTHER_KINDS.get(str(kind))
        raise wrong_field("peft_type", kind, f"{why}; {_SUPPORTED}" if why else f"only {_SUPPORTED}")
    check_known(values, _READ | _OF_TENSORS | _OF_TRAINING, _REFUSED)
    if (init := values.get("init_lora_weights")) not in _KEEP_BASE:
        why = "it changes the base model's weights; see path_initial_model_for_weight_conversion in peft"
        raise wrong_field("init_lora_weights", init, why)
    if (rslora := values.get("use_rslora")) not in (True, False, None):
        raise wrong_field("use_rslora", rslora, "must be true or false")
    return AdapterConfig(
        rank=_read_rank("r", values.get("r", 8)),
        alpha=read_alpha("lora_alpha", values.get("lora_alpha", 8)),
        rslora=bool(rslora),
        ranks=tuple(_read_patterns("rank_pattern", values, _read_rank)),
        alphas=tuple(_read_patterns("alpha_pattern", values, read_alpha)),
        invocation=read_token_ids("alora_invocation_tokens", values.get("alora_invocation_tokens")),
        base=base,
    )


def read_alpha(name: str, value: Any) -> float:
    """Returns an alpha. name: of the field. Raises AdapterError."""
    if type(value) not in (int, float) or not 0 < value <= MAX_ALPHA:
        raise wrong_field(name, value, f"must be a number above 0 and at most {MAX_ALPHA}")
    return float(value)


def read_token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Returns the ids that activate an adapter; none for None. name: of the field. Raises AdapterError."""
    ids = [] if value is None else value
    if not isinstance(ids, list) or len(ids) > MAX_INVOCATION:
        raise wrong_field(name, value, f"must be a list of at most {MAX_INVOCATION} token ids")
    if any(type(each) is not int or not 0 <= each < 1 << 31 for each in ids):
        raise wrong_field(name, value, "must hold token ids")
    return tuple(ids)


def _read_rank(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= adapters.MAX_RANK:
        raise wrong_field(name, value, f"must be an integer from 1 to {adapters.MAX_RANK}")
    return value


def _read_patterns(
    name: str, values: Mapping[str, Any], read: Callable[[str, Any], T]
) -> Iterator[tuple[re.Pattern[str], T]]:
    """Yields the patterns of a field, compiled, and what it has for them. Raises AdapterError."""
    patterns = values.get(name) or {}
    if not isinstance(patterns, dict) or len(patterns) > MAX_PATTERNS:
        raise wrong_field(name, patterns, f"must be an object of at most {MAX_PATTERNS} patterns")
    if sum(_repeats(name, key) for key in patterns) > MAX_REPEATING:
        raise wrong_field(name, patterns, f"more than {MAX_REPEATING} patterns repeat something")
    for key, value in patterns.items():
        try:
            pattern = re.compile(rf"(.*\.)?({key})$")  # as peft matches it
        except (re.error, OverflowError, RecursionError) as error:
            raise wrong_field(name, key, f"it is not a regular expression: {error}") from error
        yield pattern, read(f"{name}[{key!r}]", value)


def _repeats(name: str, key: str) -> bool:
    """Returns whether a pattern repeats something. Raises AdapterError where matching it might not end."""
    quantifiers = len(re.findall(r"(?<!\\)[*+?{]", key))
    if len(key) > _MAX_PATTERN_LENGTH or quantifiers > 2 or re.search(r"\)[*+?{]|\\\\", key):
        why = "the pattern is too complex: it may repeat two characters, and no groups"
        raise wrong_field(name, key, why)
    return quantifiers > 0


def _first_match(patterns: Patterns[T], module: str, default: T | None) -> T | None:
    return next((value for pattern, value in patterns if pattern.match(module)), default)
