"""Configuration of a decoder that worker.models.transformer builds from its parts alone, and how most
families spell its fields. Needs no torch."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from worker.config.experts import ExpertsConfig
from worker.config.hf_config import MAX_LAYERS, MOST, Fields, ModelConfig, head_fields, read_activation
from worker.config.rope import LLAMA_ROPE, RopeConfig, RopeDefaults, read_rope, scaled_max_position

SLIDING, FULL, CHUNKED = "sliding_attention", "full_attention", "chunked_attention"


class NormPlace(Enum):
    """Where a block norms: x is the residual stream, f the attention, then the feed-forward part."""

    BEFORE = "x + f(norm(x))"
    AFTER = "x + norm(f(x))"
    LAST = "norm(x + f(x))"
    AROUND = "x + norm(f(norm(x)))"
    PARALLEL = "x + attention(norm(x)) + mlp(norm(x))"


class NormKind(Enum):
    """The norm of the residual stream."""

    RMS = "root mean square, with a weight"
    LAYER = "layer norm, with a weight and a bias"
    LAYER_WITHOUT_BIAS = "layer norm, with a weight"
    LAYER_WITHOUT_PARAMETERS = "layer norm"


class HeadNormKind(Enum):
    """The norm of queries and keys, before the rotation."""

    NONE = "none"
    PER_HEAD = "of each head, one weight [D] for all"
    ROTATED = "of each head without a weight, in layers with rotary positions"
    FULL_WIDTH = "of all heads together, weights [H * D] and [K * D]"


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Sizes of latent attention (worker.layers.latent). Such a model has one KV head for the cache,
    and its `head_dim` is that of the rotary parts."""

    rank: int  # R: of the latent that stands for keys and values
    query_rank: int | None  # of the latent of queries; None: they are not compressed
    plain_dim: int  # N: values of a query's head that are not rotated
    rotary_dim: int  # P: those that are
    value_dim: int  # D: of a head's value
    norm_eps: float  # of the norms of latents


@dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """Sizes of a gated delta net (worker.layers.states)."""

    key_heads: int  # G
    value_heads: int  # H, a multiple of G
    key_dim: int  # N, of a query and a key
    value_dim: int  # D, of a value
    taps: int  # tokens that the convolution sees
    grouped: bool  # rows of the projections are stored by key head


@dataclass(frozen=True, kw_only=True)
class MambaConfig:
    """Sizes of a Mamba-2 layer (worker.layers.states)."""

    heads: int  # H
    head_dim: int  # P
    groups: int  # G, which divides H
    state_size: int  # N
    taps: int  # tokens that the convolution sees
    convolution_bias: bool
    projection_bias: bool  # of both projections
    gate_factor: float = 1.0
    input_factors: tuple[float, float, float] = (1.0, 1.0, 1.0)  # of x, b and c, before the convolution
    step_factor: float = 1.0
    normed: bool = True  # a norm of what the scan gives, by group


@dataclass(frozen=True, kw_only=True)
class TemperatureConfig:
    """Factors of queries that grow with the position (worker.layers.attention.rotary)."""

    scale: float
    floor_scale: int  # tokens in which the factor stays the same


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """A decoder of attention and feed-forward parts. Defaults are those of Llama."""

    intermediate_size: int  # I
    norm_eps: float
    activation: str
    ropes: tuple[RopeConfig | None, ...]  # by layer; None: positions change nothing (NoPE)
    learned_positions: bool = False  # a vector per position is a part of the embedding
    position_offset: int = 0  # rows of that table before the vector of position 0
    experts: tuple[ExpertsConfig | None, ...] = ()  # by layer, in place of one feed-forward part; empty: none
    gated: bool = True  # down(f(gate(x)) * up(x)), else down(f(up(x)))
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_place: NormPlace = NormPlace.BEFORE
    first_norm: bool = True  # with NormPlace.BEFORE: the first block has a norm before its attention
    last_norm: bool = True  # but with NormPlace.LAST: there is a norm behind the blocks
    norm_kind: NormKind = NormKind.RMS
    norm_offset: float = 0.0  # is added to all norm weights; 1: they are stored as their distance from 1
    head_norms: HeadNormKind = HeadNormKind.NONE
    latent: LatentConfig | None = None  # None: attention over keys and values
    attention_scale: float | None = None  # of scores; None: D ** -0.5
    scale_by_inverse_layer: bool = False  # that of layer i is divided by i + 1
    score_cap: float | None = None  # scores become cap * tanh(score / cap)
    temperature: TemperatureConfig | None = None  # of queries, in layers without rotary positions
    deltas: tuple[DeltaConfig | None, ...] = ()  # by layer, in place of attention; empty: none
    mambas: tuple[MambaConfig | None, ...] = ()  # by layer, in place of attention; empty: none
    mambas_attend: float | None = None  # such layers attend beside it, with this factor; None: they do not
    mixed_scale: float | None = None  # of what the first part of a block adds; None: residual_scale
    gate_scale: float = 1.0  # of what the activation of a gated feed-forward part takes
    attention_gate: bool = False  # what attention has mixed is multiplied by sigmoid(gate(x))
    sinks: bool = False  # each head has a learned score that takes weight and has no value
    embedding_scale: float = 1.0
    rounds_embedding_scale: bool = False  # to the dtype of the weights; it is then a part of the lookup
    residual_scale: float = 1.0  # of what a block adds to the residual stream
    logit_scale: float = 1.0
    logit_cap: float | None = None  # logits become cap * tanh(logit / cap)
    transposed: bool = False  # checkpoints store matrices as [in, out]

    @property
    def input_embedding_size(self) -> int:
        return self.hidden_size

    @property
    def kv_values(self) -> int:
        return super().kv_values if self.latent is None else self.latent.rank + self.latent.rotary_dim

    @property
    def pair_values(self) -> int:
        return super().pair_values if self.latent is None else self.latent.rank + self.kv_values

    @property
    def has_states(self) -> bool:
        return any(self.deltas) or any(self.mambas)

    @property
    def depends_on_prompt_len(self) -> bool:
        """True where angles of a layer depend on the prompt's length; see worker.layers.attention.rotary."""
        return any(rope is not None and rope.depends_on_prompt_len for rope in self.ropes)


@dataclass(frozen=True, kw_only=True)
class DecoderFamily:
    """One architecture: how its config.json is read, and how its checkpoints name the parts."""

    read: Callable[[Fields, dict[str, Any]], DecoderConfig]
    """From config.json and the fields of ModelConfig that all families share. Raises StartupError."""
    names: Mapping[str, tuple[str, ...]]
    """Path of a layer -> modules of the checkpoint that it is made of; see worker.weights.loader."""
    other_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names in place of some of these, in checkpoints that have all tensors under these."""
    unused: str = (
        r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|model\.rotary_emb\.inv_freq|lm_head\.weight"
    )
    """Pattern of tensors that checkpoints hold although the model does not need them: buffers of older
    checkpoints, and the head's weight that some tied checkpoints hold all the same."""
    harmless: Collection[str] = ()
    """Fields of config.json that change nothing, besides those of worker.config.hf_config.HARMLESS."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json of which one value is supported."""
    optional_prefix: str = "model."
    """Part of the names that checkpoints of the bare model lack."""
    nested: bool = False
    """Whether config.json has the decoder's fields in `text_config`, beside those of what sees images."""


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """What a family calls the fields that all decoders have, and what it takes for those that are absent."""

    max_position: int
    head_dim: int | None = None  # None: hidden size / heads
    norm_eps: str = "rms_norm_eps"
    default_norm_eps: float = 1e-6
    intermediate_size: str = "intermediate_size"
    activation: str = "hidden_act"
    default_activation: str = "silu"
    tied: bool = False
    rope: RopeDefaults = LLAMA_ROPE


def read_decoder(fields: Fields, common: dict[str, Any], spelling: Spelling) -> dict[str, Any]:
    """Returns the fields of DecoderConfig that have no default, and the windows: none. All layers have the
    same rotary parameters. Raises StartupError."""
    values = read_sizes(fields, common, spelling)
    trained = values["max_position"]
    rope = read_rope(fields, trained, values["head_dim"], spelling.rope)
    return values | {
        "ropes": (rope,) * values["num_layers"],
        "max_position": scaled_max_position(rope, trained),
    }


def read_sizes(fields: Fields, common: dict[str, Any], spelling: Spelling) -> dict[str, Any]:
    """As read_decoder(), but for the rotary parameters: `max_position` is what the file says."""
    num_layers = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    return {
        **common,
        **head_fields(fields, spelling.head_dim),
        "num_layers": num_layers,
        "windows": (None,) * num_layers,
        "max_position": fields.integer("max_position_embeddings", spelling.max_position, most=MOST),
        "tied": fields.boolean("tie_word_embeddings", spelling.tied),
        "intermediate_size": fields.integer(spelling.intermediate_size),
        "norm_eps": fields.number(spelling.norm_eps, spelling.default_norm_eps),
        "activation": read_activation(fields, spelling.activation, spelling.default_activation),
    }


def read_biases(fields: Fields, default: bool = False) -> dict[str, Any]:
    """Returns the fields of DecoderConfig for the biases of attention. Raises StartupError."""
    bias = fields.boolean("attention_bias", default)
    return {"qkv_bias": bias, "output_bias": bias}


def read_rotated_layers(fields: Fields, num_layers: int, stated: bool) -> tuple[bool, ...]:
    """Returns for each layer whether it has rotary positions. stated: `no_rope_layers` says it. Raises
    StartupError."""
    interval = fields.integer("no_rope_layer_interval", 4)
    if not stated:
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    rotates = fields.integers("no_rope_layers", least=0)
    if len(rotates) < num_layers or not set(rotates) <= {0, 1}:
        raise fields.wrong("no_rope_layers", "must have a 0 or a 1 for each hidden layer")
    return tuple(map(bool, rotates[:num_layers]))


def read_kinds(fields: Fields, default: Sequence[str], local: str = SLIDING) -> tuple[str, ...]:
    """Returns for each layer whether it is `local` or FULL. default: for files without `layer_types`. Raises
    StartupError."""
    if not fields.has("layer_types"):
        return tuple(default)
    kinds = fields.texts("layer_types")
    if len(kinds) != len(default) or not set(kinds) <= {local, FULL}:
        raise fields.wrong("layer_types", f"must name {local} or {FULL} once per hidden layer")
    return tuple(kinds)


def every(period: int, num_layers: int) -> tuple[str, ...]:
    """Returns the kinds of layers of which each `period`-th one is FULL, and the others are SLIDING."""
    return tuple(SLIDING if (layer + 1) % period else FULL for layer in range(num_layers))


def windows_of(kinds: Sequence[str], window: int | None, local: str = SLIDING) -> tuple[int | None, ...]:
    """Returns the window of each layer; those of the kind `local` have one."""
    return tuple(window if kind == local else None for kind in kinds)


def read_window(fields: Fields, default: int | None) -> int | None:
    """Returns `sliding_window`: null means none, and an absent one the default. Raises StartupError."""
    if fields.has("sliding_window"):
        return fields.integer("sliding_window", most=MOST)
    return None if "sliding_window" in fields else default


def read_used_window(fields: Fields) -> int | None:
    """Returns `sliding_window` where `use_sliding_window` is true: files say 0, -1 or null where it is not.
    Raises StartupError."""
    fields.has("sliding_window")
    return read_window(fields, 4096) if fields.boolean("use_sliding_window", False) else None
