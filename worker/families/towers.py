"""Towers of encoders of images: how `vision_config` is read, and what checkpoints call their parts.

CLIP         a class token, learned positions, a norm before the blocks
SigLIP       learned positions; a norm behind the blocks where all of the tower is read
Pixtral      images of any size, rotary positions by row and column, parts as Llama has them
Qwen-VL      images of any size, rotary positions by row and column, patches of two equal frames; Qwen2-VL
             otherwise as SigLIP, Qwen2.5-VL as Llama and with windows in most blocks, Qwen3-VL with learned
             positions that are stretched over the image
InternViT    a class token, learned positions, scales of what each part of a block adds
Gemma 4      images of any size, learned vectors of rows and columns, which turn queries and keys, too, norms
             around the parts of a block; products may be clipped. That of 12B has no blocks, and larger
             patches
Llama 4      a class token behind the patches, learned positions and rotary ones by column and row, norms
             before and behind the blocks
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any

from worker.config.hf_config import HARMLESS, MAX_LAYERS, MOST, Fields, read_activation
from worker.config.vision import TowerConfig

_OF_ANY_TOWER = ("projection_dim", "initializer_factor", "logit_scale_init_value", "vocab_size", "head_dim")
"""Fields that change nothing for a tower."""
_MOST_PATCHES = 1 << 16
"""Of an image. Each has a row in the table of positions."""


@dataclass(frozen=True, kw_only=True)
class TowerFamily:
    """A tower, by the model_type of its configuration."""

    read: Callable[[Fields, dict[str, Any]], TowerConfig]
    """From vision_config and the fields that all towers have. Raises StartupError."""
    sizes: Mapping[str, int]
    """Of fields that are not said."""
    activation: str
    """The same."""
    names: Mapping[str, tuple[str, ...]]
    """Path of a layer -> modules of the checkpoint, both from the tower on."""
    layers: str
    """Path of the blocks in the checkpoint, from the tower on, as a pattern."""
    unused: str = r"(?!)"
    """Pattern of tensors that the model does not need, from the tower on."""
    harmless: Collection[str] = ()
    """Fields that change nothing, or that SeeingFamily.read reads."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Other names of fields."""

    def read_all(self, fields: Fields, kind: str) -> TowerConfig:
        """Reads vision_config. kind: its model_type. Raises StartupError."""
        fields.expect("num_channels", 3)
        tower = self.read(fields, {"kind": kind, **self._read_sizes(fields)})
        fields.refuse_unknown({*HARMLESS, *_OF_ANY_TOWER, *self.harmless})
        return tower

    def _read_sizes(self, fields: Fields) -> dict[str, Any]:
        spelled = {name: self.spelled.get(name, name) for name in self.sizes}
        names = "hidden_size", "num_attention_heads"
        width, heads = (fields.integer(spelled[name], self.sizes[name]) for name in names)
        if width % heads:
            raise fields.wrong(spelled["num_attention_heads"], f"must divide hidden_size ({width})")
        if fields.has("head_dim") and fields.integer("head_dim") != width // heads:
            raise fields.wrong("head_dim", f"must be hidden_size / num_attention_heads ({width // heads})")
        name = "num_hidden_layers"
        layers = fields.integer(spelled[name], self.sizes[name], most=MAX_LAYERS)
        patch_size = _read_side(fields, "patch_size", self.sizes["patch_size"])
        image_size = _read_side(fields, "image_size", self.sizes.get("image_size", patch_size))
        if not patch_size <= image_size <= patch_size * _MOST_PATCHES**0.5:
            raise fields.wrong("image_size", f"must be {patch_size} to {256 * patch_size}")
        return {
            "hidden_size": width,
            "num_heads": heads,
            "num_layers": layers,
            "intermediate_size": self._read_inner(fields, width),
            "activation": read_activation(
                fields, self.spelled.get("hidden_act", "hidden_act"), self.activation
            ),
            "patch_size": patch_size,
            "image_size": image_size,
        }

    def _read_inner(self, fields: Fields, width: int) -> int:
        """Returns the width within feed-forward parts, which some files give as a multiple of the tower's."""
        if "mlp_ratio" in self.sizes:
            return width * fields.integer("mlp_ratio", self.sizes["mlp_ratio"], times=width)
        return fields.integer("intermediate_size", self.sizes["intermediate_size"])


def _read_side(fields: Fields, name: str, default: int) -> int:
    """Returns pixels of a side of a square: one number, or two that are equal."""
    value = fields.value(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1] and type(value[0]) is int:
        value = value[0]
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= MOST:
        raise fields.wrong(name, "must be a number of pixels, or a list of two that are equal")
    return value


def _read_clip(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    return TowerConfig(
        **sizes,
        norm_eps=fields.number("layer_norm_eps", 1e-5),
        class_token=True,
        learned_positions=True,
        first_norm=True,
    )


_ENCODER_LAYER = "encoder.layers.{layer}"
_SIGLIP_NAMES = {
    "patches": ("embeddings.patch_embedding",),
    "positions": ("embeddings.position_embedding.weight",),
    "blocks.{layer}.attention_norm": (f"{_ENCODER_LAYER}.layer_norm1",),
    "blocks.{layer}.attention.qkv": tuple(f"{_ENCODER_LAYER}.self_attn.{part}_proj" for part in "qkv"),
    "blocks.{layer}.attention.output": (f"{_ENCODER_LAYER}.self_attn.out_proj",),
    "blocks.{layer}.mlp_norm": (f"{_ENCODER_LAYER}.layer_norm2",),
    "blocks.{layer}.mlp.up": (f"{_ENCODER_LAYER}.mlp.fc1",),
    "blocks.{layer}.mlp.down": (f"{_ENCODER_LAYER}.mlp.fc2",),
    "last_norm": ("post_layernorm",),
}
_CLIP_SIZES = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
}
_NOT_BEHIND = r"post_layernorm\..+|embeddings\.position_ids"
CLIP = TowerFamily(
    read=_read_clip,
    sizes=_CLIP_SIZES,
    activation="quick_gelu",
    names=_SIGLIP_NAMES | {"class_token": ("embeddings.class_embedding",), "first_norm": ("pre_layrnorm",)},
    layers=r"encoder\.layers",
    unused=_NOT_BEHIND,
)


def _read_siglip(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    eps = fields.number("layer_norm_eps", 1e-6)
    return TowerConfig(**sizes, norm_eps=eps, patch_bias=True, learned_positions=True)


def _read_bucketing_siglip(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    return replace(_read_siglip(fields, sizes), last_norm=True, buckets_positions=True)


SIGLIP = TowerFamily(
    read=_read_siglip,
    sizes=_CLIP_SIZES | {"patch_size": 16},
    activation="gelu_pytorch_tanh",
    names=_SIGLIP_NAMES,
    layers=r"encoder\.layers",
    unused=rf"head\..+|{_NOT_BEHIND}",
    harmless=("vision_use_head",),
)
SIGLIP_AND_NORM = replace(
    SIGLIP, read=lambda fields, sizes: replace(_read_siglip(fields, sizes), last_norm=True)
)
"""All of the tower, and the norm behind it: that of Gemma 3."""
BUCKETING_SIGLIP = TowerFamily(
    read=_read_bucketing_siglip,
    sizes=_CLIP_SIZES | {"hidden_size": 1152, "num_attention_heads": 16},
    activation="gelu_pytorch_tanh",
    names=_SIGLIP_NAMES,
    layers=r"encoder\.layers",
    unused=r"embeddings\.position_ids",
    harmless=("max_image_size", "size", "tie_word_embeddings", "use_base_siglip"),
)
"""That of Idefics3 and SmolVLM."""


def _read_axial(fields: Fields, sizes: dict[str, Any], theta: float = 10_000.0) -> dict[str, Any]:
    """Reads how rows and columns rotate queries and keys of images of any size."""
    if sizes["hidden_size"] // sizes["num_heads"] % 4:
        raise fields.wrong("num_attention_heads", "heads of a multiple of 4 values are rotated")
    rotary = fields.object("rope_parameters") if fields.has("rope_parameters") else fields
    if rotary is not fields:
        if rotary.text("rope_type", "axial") not in ("axial", "default"):
            raise rotary.wrong("rope_type", "only axial is known")
        rotary.refuse_unknown(("rope_theta",))
    return {"any_size": True, "rotary_theta": rotary.number("rope_theta", theta)}


def _read_pixtral(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    return TowerConfig(
        **sizes,
        **_read_axial(fields, sizes),
        norm_eps=1e-5,
        rms_norms=True,
        first_norm=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        gated=True,
    )


_PIXTRAL_LAYER = "transformer.layers.{layer}"
PIXTRAL = TowerFamily(
    read=_read_pixtral,
    sizes={
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 1024,
        "patch_size": 16,
    },
    activation="gelu",
    names={
        "patches": ("patch_conv",),
        "first_norm": ("ln_pre",),
        "blocks.{layer}.attention_norm": (f"{_PIXTRAL_LAYER}.attention_norm",),
        "blocks.{layer}.attention.qkv": tuple(f"{_PIXTRAL_LAYER}.attention.{part}_proj" for part in "qkv"),
        "blocks.{layer}.attention.output": (f"{_PIXTRAL_LAYER}.attention.o_proj",),
        "blocks.{layer}.mlp_norm": (f"{_PIXTRAL_LAYER}.ffn_norm",),
        "blocks.{layer}.mlp.gate_up": tuple(
            f"{_PIXTRAL_LAYER}.feed_forward.{part}_proj" for part in ("gate", "up")
        ),
        "blocks.{layer}.mlp.down": (f"{_PIXTRAL_LAYER}.feed_forward.down_proj",),
    },
    layers=r"transformer\.layers",
    harmless=("is_composition", "tie_word_embeddings"),
)


def _read_intern_vit(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    kind = fields.text("norm_type", "layer_norm")
    if kind not in ("layer_norm", "rms_norm"):
        raise fields.wrong("norm_type", "only these are known: layer_norm, rms_norm")
    return TowerConfig(
        **sizes,
        norm_eps=fields.number("layer_norm_eps", 1e-6),
        rms_norms=kind == "rms_norm",
        patch_bias=True,
        class_token=True,
        learned_positions=fields.boolean("use_absolute_position_embeddings", True),
        stored_as_batch=True,
        qkv_bias=fields.boolean("attention_bias", False),
        head_norms=fields.boolean("use_qk_norm", False),
        channel_scales=True,
        last_norm=not fields.boolean("use_mean_pooling", True),
    )


_VIT_LAYER = "encoder.layer.{layer}"
INTERN_VIT = TowerFamily(
    read=_read_intern_vit,
    sizes={
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 448,
        "patch_size": 14,
    },
    activation="gelu",
    names={
        "patches": ("embeddings.patch_embeddings.projection",),
        "class_token": ("embeddings.cls_token",),
        "positions": ("embeddings.position_embeddings",),
        "blocks.{layer}.attention_norm": (f"{_VIT_LAYER}.layernorm_before",),
        "blocks.{layer}.attention.qkv": tuple(f"{_VIT_LAYER}.attention.{part}_proj" for part in "qkv"),
        "blocks.{layer}.attention.query_norm": (f"{_VIT_LAYER}.attention.q_norm",),
        "blocks.{layer}.attention.key_norm": (f"{_VIT_LAYER}.attention.k_norm",),
        "blocks.{layer}.attention.output": (f"{_VIT_LAYER}.attention.projection_layer",),
        "blocks.{layer}.attention_output_norm": (f"{_VIT_LAYER}.lambda_1",),
        "blocks.{layer}.mlp_norm": (f"{_VIT_LAYER}.layernorm_after",),
        "blocks.{layer}.mlp.up": (f"{_VIT_LAYER}.mlp.fc1",),
        "blocks.{layer}.mlp.down": (f"{_VIT_LAYER}.mlp.fc2",),
        "blocks.{layer}.mlp_output_norm": (f"{_VIT_LAYER}.lambda_2",),
        "last_norm": ("layernorm",),
    },
    layers=r"encoder\.layer",
    unused=r"embeddings\.mask_token|layernorm\..+",
    harmless=("hidden_dropout_prob", "projection_dropout", "layer_scale_init_value", "use_mask_token"),
)


def _read_llama4(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    if sizes["activation"] != "gelu":
        raise fields.wrong("hidden_act", "only gelu is known")
    fields.expect("multi_modal_projector_bias", False)
    fields.expect("vision_feature_select_strategy", "default")
    return TowerConfig(
        **sizes,
        **_read_axial(fields, sizes) | {"any_size": False},
        rotates_pairs=True,
        norm_eps=1e-5,
        flat_patches=True,
        class_token=True,
        class_last=True,
        learned_positions=True,
        first_norm=True,
        last_norm=True,
    )


_LLAMA4_LAYER = "model.layers.{layer}"
LLAMA4_VIT = TowerFamily(
    read=_read_llama4,
    sizes={
        "hidden_size": 768,
        "intermediate_size": 5632,
        "num_hidden_layers": 34,
        "num_attention_heads": 16,
        "image_size": 448,
        "patch_size": 14,
    },
    activation="gelu",
    names={
        "patches": ("patch_embedding.linear",),
        "class_token": ("class_embedding",),
        "positions": ("positional_embedding_vlm",),
        "first_norm": ("layernorm_pre",),
        "blocks.{layer}.attention_norm": (f"{_LLAMA4_LAYER}.input_layernorm",),
        "blocks.{layer}.attention.qkv": tuple(f"{_LLAMA4_LAYER}.self_attn.{part}_proj" for part in "qkv"),
        "blocks.{layer}.attention.output": (f"{_LLAMA4_LAYER}.self_attn.o_proj",),
        "blocks.{layer}.mlp_norm": (f"{_LLAMA4_LAYER}.post_attention_layernorm",),
        "blocks.{layer}.mlp.up": (f"{_LLAMA4_LAYER}.mlp.fc1",),
        "blocks.{layer}.mlp.down": (f"{_LLAMA4_LAYER}.mlp.fc2",),
        "last_norm": ("layernorm_post",),
    },
    layers=r"model\.layers",
    harmless=(
        *("norm_eps", "pixel_shuffle_ratio", "projector_input_dim", "projector_output_dim"),
        *("projector_dropout", "vision_output_dim", "vision_feature_layer"),
    ),
)


def _read_qwen(fields: Fields, sizes: dict[str, Any]) -> dict[str, Any]:
    """Reads what all towers of Qwen-VL have."""
    for name in ("in_channels", "in_chans"):
        fields.expect(name, 3)
    fields.expect("spatial_patch_size", sizes["patch_size"])
    return {
        **sizes,
        **_read_axial(fields, sizes),
        "frames": fields.integer("temporal_patch_size", 2, most=_MOST_FRAMES),
        "equal_frequencies": True,
        "norm_eps": 1e-6,
    }


_MOST_FRAMES = 64


def _read_qwen2(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    return TowerConfig(**_read_qwen(fields, sizes))


def _read_qwen2_5(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    name, merge = "fullatt_block_indexes", fields.integer("spatial_merge_size", 2)
    whole = fields.integers(name, least=0) if fields.has(name) else (7, 15, 23, 31)
    window = fields.integer("window_size", 112) // merge // sizes["patch_size"] * merge
    if not window:
        raise fields.wrong("window_size", "a window has no square of patches")
    return TowerConfig(
        **_read_qwen(fields, sizes), rms_norms=True, gated=True, window=window, full_layers=whole
    )


def _read_qwen3(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    name = "num_position_embeddings"
    count = fields.integer(name, 2304, most=_MOST_PATCHES)
    if isqrt(count) ** 2 != count:
        raise fields.wrong(name, "must be a square")
    return TowerConfig(
        **_read_qwen(fields, sizes) | {"image_size": isqrt(count) * sizes["patch_size"]},
        patch_bias=True,
        learned_positions=True,
        interpolates_positions=True,
    )


_QWEN_LAYER = "blocks.{layer}"
_QWEN_NAMES = {
    "patches": ("patch_embed.proj",),
    "positions": ("pos_embed.weight",),
    "blocks.{layer}.attention_norm": (f"{_QWEN_LAYER}.norm1",),
    "blocks.{layer}.attention.qkv": (f"{_QWEN_LAYER}.attn.qkv",),
    "blocks.{layer}.attention.output": (f"{_QWEN_LAYER}.attn.proj",),
    "blocks.{layer}.mlp_norm": (f"{_QWEN_LAYER}.norm2",),
}


def _qwen_mlp(up: str, down: str) -> dict[str, tuple[str, ...]]:
    return {
        "blocks.{layer}.mlp.up": (f"{_QWEN_LAYER}.mlp.{up}",),
        "blocks.{layer}.mlp.down": (f"{_QWEN_LAYER}.mlp.{down}",),
    }


_QWEN_SIZES = {
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "patch_size": 14,
}
_QWEN_SPELLED = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}
_OF_THE_MERGER = ("spatial_merge_size", "out_hidden_size", "tokens_per_second")
QWEN2_VIT = TowerFamily(
    read=_read_qwen2,
    sizes=_QWEN_SIZES | {"mlp_ratio": 4},
    activation="quick_gelu",
    names=_QWEN_NAMES | _qwen_mlp("fc1", "fc2"),
    layers="blocks",
    harmless=(*_OF_THE_MERGER, "hidden_size", "intermediate_size"),
    spelled=_QWEN_SPELLED | {"hidden_size": "embed_dim"},
)
QWEN2_5_VIT = TowerFamily(
    read=_read_qwen2_5,
    sizes=_QWEN_SIZES | {"intermediate_size": 3420},
    activation="silu",
    names=_QWEN_NAMES
    | {
        "blocks.{layer}.mlp.gate_up": tuple(f"{_QWEN_LAYER}.mlp.{part}_proj" for part in ("gate", "up")),
        "blocks.{layer}.mlp.down": (f"{_QWEN_LAYER}.mlp.down_proj",),
    },
    layers="blocks",
    harmless=_OF_THE_MERGER,
    spelled=_QWEN_SPELLED,
)
QWEN3_VIT = TowerFamily(
    read=_read_qwen3,
    sizes=_QWEN_SIZES
    | {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 16},
    activation="gelu_pytorch_tanh",
    names=_QWEN_NAMES | _qwen_mlp("linear_fc1", "linear_fc2"),
    layers="blocks",
    harmless=(*_OF_THE_MERGER, "deepstack_visual_indexes"),
    spelled=_QWEN_SPELLED,
)


def _read_gemma4(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    heads, head_dim = sizes["num_heads"], sizes["hidden_size"] // sizes["num_heads"]
    fields.expect("num_key_value_heads", heads, f"there are {heads} heads of queries")
    if not fields.has("head_dim") and head_dim != _GEMMA4_HEAD:
        raise fields.wrong("head_dim", f"must be hidden_size / num_attention_heads ({head_dim})")
    return TowerConfig(
        **sizes,
        **_read_axial(fields, sizes, theta=100.0),
        equal_frequencies=True,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rms_norms=True,
        around_norms=True,
        clipped=fields.boolean("use_clipped_linears", False),
        position_rows=fields.integer("position_embedding_size", 10240, most=_MOST_PATCHES),
        flat_patches=True,
        channels_last=True,
        gated=True,
    )


_GEMMA4_HEAD = 64


def _clipped(path: str, module: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of a product and of its bounds. path, module: within a block."""
    path, module = f"blocks.{{layer}}.{path}", f"{_ENCODER_LAYER}.{module}"
    bounds = (f"{end}_{bound}" for end in ("input", "output") for bound in ("min", "max"))
    return {
        f"{path}.linear": (f"{module}.linear",),
        f"{path}.bounds": tuple(f"{module}.{bound}" for bound in bounds),
    }


GEMMA4_VIT = TowerFamily(
    read=_read_gemma4,
    sizes={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "patch_size": 16,
    },
    activation="gelu_pytorch_tanh",
    names={
        "patches": ("patch_embedder.input_proj",),
        "positions": ("patch_embedder.position_embedding_table",),
        "blocks.{layer}.attention_norm": (f"{_ENCODER_LAYER}.input_layernorm",),
        "blocks.{layer}.attention.query_norm": (f"{_ENCODER_LAYER}.self_attn.q_norm",),
        "blocks.{layer}.attention.key_norm": (f"{_ENCODER_LAYER}.self_attn.k_norm",),
        "blocks.{layer}.attention_output_norm": (f"{_ENCODER_LAYER}.post_attention_layernorm",),
        "blocks.{layer}.mlp_norm": (f"{_ENCODER_LAYER}.pre_feedforward_layernorm",),
        "blocks.{layer}.mlp_output_norm": (f"{_ENCODER_LAYER}.post_feedforward_layernorm",),
        **_clipped("attention.query", "self_attn.q_proj"),
        **_clipped("attention.key", "self_attn.k_proj"),
        **_clipped("attention.value", "self_attn.v_proj"),
        **_clipped("attention.output", "self_attn.o_proj"),
        **_clipped("mlp.gate", "mlp.gate_proj"),
        **_clipped("mlp.up", "mlp.up_proj"),
        **_clipped("mlp.down", "mlp.down_proj"),
    },
    layers=r"encoder\.layers",
    harmless=(
        *("attention_bias", "max_position_embeddings", "default_output_length", "global_head_dim"),
        *("pooling_kernel_size", "standardize"),
    ),
    spelled={"hidden_act": "hidden_activation"},
)


@dataclass(frozen=True, kw_only=True)
class EmbedderFamily(TowerFamily):
    """What has no blocks: each patch becomes a vector by itself. A patch is a square of smaller ones."""

    def _read_sizes(self, fields: Fields) -> dict[str, Any]:
        width, merge = (self.spelled[name] for name in ("hidden_size", "merge"))
        side = fields.integer("patch_size", self.sizes["patch_size"])
        side *= fields.integer(merge, self.sizes["merge"], times=side)
        return {
            "hidden_size": fields.integer(width, self.sizes["hidden_size"]),
            **{"num_heads": 1, "num_layers": 0, "intermediate_size": 0, "activation": self.activation},
            **{"patch_size": side, "image_size": side},
        }


def _read_gemma4_embedder(fields: Fields, sizes: dict[str, Any]) -> TowerConfig:
    fields.expect("model_patch_size", sizes["patch_size"])
    fields.expect("output_proj_dims", sizes["hidden_size"], f"mm_embed_dim is {sizes['hidden_size']}")
    return TowerConfig(
        **sizes,
        norm_eps=1e-5,
        any_size=True,
        patch_bias=True,
        patch_norms=True,
        flat_patches=True,
        channels_last=True,
        position_rows=fields.integer("mm_posemb_size", 1120, most=_MOST_PATCHES),
        paired_positions=True,
        first_norm=True,
    )


GEMMA4_EMBEDDER = EmbedderFamily(
    read=_read_gemma4_embedder,
    sizes={"hidden_size": 3840, "patch_size": 16, "merge": 3},
    activation="",
    names={
        "patch_norm": ("patch_ln1",),
        "patches": ("patch_dense",),
        "patch_output_norm": ("patch_ln2",),
        "positions": ("pos_embedding",),
        "first_norm": ("pos_norm",),
    },
    layers=r"(?!)",
    harmless=("rms_norm_eps", "num_soft_tokens"),
    spelled={"hidden_size": "mm_embed_dim", "merge": "pooling_kernel_size"},
)
