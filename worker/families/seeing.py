"""Encoders of images beside decoders of any family.

    LLaVA                CLIP, SigLIP or Pixtral's tower, and a feed-forward part
    Mistral 3            Pixtral's tower, and squares of patches before the feed-forward part
    Idefics3, SmolVLM    SigLIP with a norm behind it, squares of patches, and one linear layer
    InternVL             InternViT, squares of patches, a norm, and a feed-forward part
    Qwen-VL              their towers, a norm, squares of patches, and a feed-forward part of their width;
                         positions of three axes (worker.step.grid_positions); Qwen3-VL has such parts behind
                         some blocks, too, whose vectors are added behind the decoder's first layers
    Llama 4              its tower with a norm behind it, squares of patches, and three linear layers
    Gemma 3              SigLIP with a norm behind it, averages of squares, a norm, and a product; tokens of
                         an image see one another
    Gemma 4              its tower, averages of squares, a norm, and a product; its own decoder, in whose
                         layers with windows tokens of an image see one another in some checkpoints. 12B has
                         larger patches, a product and norms in place of the tower

An entry says how fields of config.json are read and what the checkpoint calls the parts.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

from pagewire.checkpoints.files import BIDIRECTIONAL
from worker.config.decoder import DecoderConfig, DecoderFamily
from worker.config.experts import ExpertsConfig
from worker.config.hf_config import Fields, read_activation
from worker.config.rope import Sections
from worker.config.vision import PixelsConfig, ProjectorConfig, TowerConfig, VisionConfig
from worker.families.image_processors import (
    pixel_fields,
    read_centered_pixels,
    read_most_pixels,
    read_pixels,
    read_rounded_pixels,
    read_soft_tokens,
)
from worker.families.normed.gemma import UNUSED_BESIDE_IMAGES
from worker.families.towers import (
    BUCKETING_SIGLIP,
    CLIP,
    GEMMA4_EMBEDDER,
    GEMMA4_VIT,
    INTERN_VIT,
    LLAMA4_VIT,
    PIXTRAL,
    QWEN2_5_VIT,
    QWEN2_VIT,
    QWEN3_VIT,
    SIGLIP,
    SIGLIP_AND_NORM,
    TowerFamily,
)

Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class SeeingFamily:
    """One architecture of an encoder of images and a decoder."""

    towers: Mapping[str, TowerFamily]
    """By model_type of vision_config; the first one where that is not said."""
    read: Callable[[Fields, TowerConfig, DecoderConfig], dict[str, Any]]
    """From config.json: the fields of VisionConfig but for pixels and tower. Raises StartupError."""
    decoder: str
    """model_type of text_config where that is not said."""
    only_decoder: str = ""
    """Architecture of the one decoder that there may be; empty: any that worker.families.registry finds."""
    decoders: Mapping[str, str] = field(default_factory=dict)
    """model_type of text_config -> that of the decoder; empty: it is that of any decoder."""
    sections: Sections | None = None
    """Where vectors have positions of three axes: which frequencies turn with each."""
    tower: str
    """Path of the tower in the checkpoint."""
    projector: Names
    """Path of a layer of the projector -> modules of the checkpoint."""
    text: tuple[str, str]
    """Pattern in names of a decoder's modules, and what stands for it in this checkpoint."""
    spellings: tuple[Mapping[str, str], ...] = ()
    """Prefixes of names, and what stands for them in some checkpoints that have all tensors under these."""
    deeper: Names = field(default_factory=dict)
    """As `projector`, of those whose vectors are added behind layers; {layer} is the number of each."""
    harmless: Collection[str] = ()
    """Fields of config.json that change nothing, besides those that all families have."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Fields of text_config of which one value is supported."""
    harmless_of_text: Collection[str] = ()
    """Fields of text_config that change nothing."""
    adjust: Callable[[DecoderConfig], DecoderConfig] = lambda decoder: decoder
    """What differs in a decoder where it stands beside an encoder."""
    whole_images: Callable[[Fields, int | None], bool] = lambda fields, window: False
    """From text_config and the window of a layer: whether tokens of an image see all of it there."""
    read_pixels: Callable[[Fields], PixelsConfig] = read_pixels
    """From the fields of an image processor. Raises StartupError."""
    read_most_pixels: Callable[[Fields, int], int] | None = None
    """From these and the pixels of a side that become a vector: of the largest image as it is prepared; None:
    that the tower was trained with. Raises StartupError."""
    unused: str = r"(?!)"
    """Pattern of tensors that the model does not need, besides those of tower and decoder."""

    def read_vision(self, whole: Fields, folder: Path, decoder: DecoderConfig) -> VisionConfig:
        """Reads the encoder's configuration. whole: config.json. folder: of the checkpoint. Raises
        StartupError."""
        fields, first = whole.object("vision_config"), next(iter(self.towers))
        kind = fields.text("model_type", first)
        if kind not in self.towers:
            raise fields.wrong("model_type", f"only these are known: {', '.join(self.towers)}")
        tower, of_pixels = self.towers[kind].read_all(fields, kind), pixel_fields(folder)
        values = {"pixels": self.read_pixels(of_pixels), **self.read(whole, tower, decoder)}
        if self.read_most_pixels is not None:
            most = self.read_most_pixels(of_pixels, tower.patch_size * values["projector"].merge)
            tower = replace(tower, most_pixels=most)
        return VisionConfig(tower=tower, has_grid_positions=self.sections is not None, **values)

    def names_of(self, vision: VisionConfig | None, decoder: DecoderFamily) -> dict[str, tuple[str, ...]]:
        """Returns the names of all layers. vision: None: the text alone is served."""
        text = self.text_names(decoder.names)
        if vision is None:
            return text
        tower = self.towers[vision.tower.kind].names
        return {
            **text,
            **{
                f"vision.tower.{path}": tuple(f"{self.tower}.{module}" for module in modules)
                for path, modules in tower.items()
            },
            **{f"vision.projector.{path}": modules for path, modules in self.projector.items()},
            **{f"vision.deeper.{{layer}}.{path}": modules for path, modules in self.deeper.items()},
        }

    def text_names(self, names: Names) -> dict[str, tuple[str, ...]]:
        """Returns the names of a decoder as this checkpoint has them."""
        return {path: tuple(re.sub(*self.text, name) for name in modules) for path, modules in names.items()}

    def unused_of(self, vision: VisionConfig | None, decoder: DecoderFamily) -> str:
        """Returns the pattern of the tensors that the model does not need. vision: as for names_of()."""
        if vision is None:
            parts_of = *self.projector.values(), *self.deeper.values()
            projectors = (name for names in parts_of for name in names)
            modules = "|".join(re.escape(name).replace(r"\{layer\}", r"\d+") for name in projectors)
            parts = rf"(?:model\.)?(?:{re.escape(self.tower)}\..+|(?:{modules})(?:\..+)?)"
        else:
            family, tower = self.towers[vision.tower.kind], vision.tower
            behind = "|".join(map(str, range(vision.num_layers, tower.num_layers)))
            layers = rf"{family.layers}\.(?:{behind})\..+|" if behind else ""
            parts = rf"(?:model\.)?{re.escape(self.tower)}\.(?:vision_model\.)?(?:{layers}{family.unused})"
        return rf"{parts}|{self.unused}|(?:language_model\.)?(?:{decoder.unused})"


def _behind(whole: Fields, name: str, default: int, num_layers: int) -> tuple[int, ...]:
    """Returns behind how many blocks the outputs are that a field names, one or several, as transformers
    numbers hidden states: 0 is the input of the first block, -1 the output of the last one."""
    value = whole.value(name) if whole.has(name) else default
    found = []
    for layer in value if isinstance(value, list) else [value]:
        if type(layer) is not int or not -num_layers <= layer <= num_layers or layer == 0:
            raise whole.wrong(name, f"must be a block's number, or a list of these, of {num_layers} blocks")
        found.append(layer if layer > 0 else num_layers + 1 + layer)
    if not found or len(set(found)) < len(found):
        raise whole.wrong(name, "must name blocks, each once")
    return tuple(found)


def _drops_first(whole: Fields) -> bool:
    strategy = whole.text("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise whole.wrong("vision_feature_select_strategy", "only these are known: default, full")
    return strategy == "default"


def _read_llava(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    drops_first = _drops_first(whole)
    if drops_first and tower.any_size:
        raise whole.wrong("vision_feature_select_strategy", f"a tower {tower.kind} has no class token")
    return {
        "features": _behind(whole, "vision_feature_layer", -2, tower.num_layers),
        "drops_first": drops_first,
        "projector": ProjectorConfig(
            activation=read_activation(whole, "projector_hidden_act", "gelu"),
            bias=whole.boolean("multimodal_projector_bias", True),
        ),
    }


def _read_mistral3(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    features = _behind(whole, "vision_feature_layer", -1, tower.num_layers)
    if len(features) > 1:
        raise whole.wrong("vision_feature_layer", "the norm behind it takes one layer")
    return {
        "features": features,
        "projector": ProjectorConfig(
            merge=whole.integer("spatial_merge_size", 2, most=_MOST_MERGED),
            merged_by_channel=True,
            tower_norm_eps=decoder.norm_eps,
            merging_linear=True,
            activation=read_activation(whole, "projector_hidden_act", "gelu"),
            bias=whole.boolean("multimodal_projector_bias", False),
        ),
    }


def _read_idefics3(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    merge = whole.integer("scale_factor", 2, most=_MOST_MERGED)
    _check_squares(whole, "scale_factor", merge, tower)
    return {
        "features": (tower.num_layers,),
        "projector": ProjectorConfig(merge=merge, bias=False),
    }


def _read_internvl(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    if not _drops_first(whole):
        raise whole.wrong("vision_feature_select_strategy", "the class token is in no square of patches")
    features = _behind(whole, "vision_feature_layer", -1, tower.num_layers)
    if len(features) > 1 or (tower.last_norm and features[0] != tower.num_layers):
        raise whole.wrong("vision_feature_layer", "only one layer is read, the last one where a norm follows")
    merge = _read_ratio(whole, "downsample_ratio", tower)
    return {
        "features": features,
        "drops_first": True,
        "projector": ProjectorConfig(
            merge=merge,
            layer_norm_eps=1e-5,
            activation=read_activation(whole, "projector_hidden_act", "gelu"),
        ),
    }


def _read_ratio(fields: Fields, name: str, tower: TowerConfig) -> int:
    """Returns the patches of a side of a square, where a file says 1 / n."""
    ratio = fields.number(name, 0.5)
    merge = round(1 / ratio) if ratio <= 1 else 0
    if not 1 <= merge <= _MOST_MERGED or merge * ratio != 1:
        raise fields.wrong(name, f"must be 1 / n, n from 1 to {_MOST_MERGED}")
    _check_squares(fields, name, merge, tower)
    return merge


def _read_llama4(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    fields = whole.object("vision_config")
    merge, name = _read_ratio(fields, "pixel_shuffle_ratio", tower), "intermediate_size"
    if tower.intermediate_size != tower.hidden_size * merge**2:
        raise fields.wrong(name, f"squares of patches have {tower.hidden_size * merge**2} values")
    inner = fields.integer("projector_input_dim", 4096)
    for name, default in (("projector_output_dim", 4096), ("vision_output_dim", 7680)):
        if fields.integer(name, default) != inner:
            raise fields.wrong(name, f"projector_input_dim is {inner}")
    return {
        "features": (tower.num_layers,),
        "drops_last": True,
        "projector": ProjectorConfig(merge=merge, activation="gelu", inner_size=inner, bias=False),
    }


def _read_gemma3(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    name = "mm_tokens_per_image"
    count, patches = whole.integer(name, 256), tower.patches_per_side
    side = isqrt(count)
    if side**2 != count or patches % side:
        raise whole.wrong(name, f"is no square of a number that divides {patches} patches of a side")
    if patches // side > _MOST_MERGED:
        raise whole.wrong(name, f"averages more than {_MOST_MERGED} x {_MOST_MERGED} patches")
    return {
        "features": (tower.num_layers,),
        "projector": ProjectorConfig(merge=patches // side, average_eps=tower.norm_eps, bias=False),
    }


def _read_gemma4(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    fields = whole.object("vision_config")
    return {
        "features": (tower.num_layers,),
        "projector": ProjectorConfig(
            merge=fields.integer("pooling_kernel_size", 3, most=_MOST_MERGED),
            pooled_eps=tower.norm_eps,
            pooled_factor=tower.hidden_size**0.5,
            standardized=fields.boolean("standardize", False),
            bias=False,
        ),
    }


def _read_gemma4_unified(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    eps = whole.object("vision_config").number("rms_norm_eps", 1e-6)
    return {"features": (0,), "projector": ProjectorConfig(pooled_eps=eps, bias=False)}


_MOST_MERGED = 64
"""Patches of a side of a square."""


def _check_squares(whole: Fields, name: str, merge: int, tower: TowerConfig) -> None:
    if tower.patches_per_side % merge:
        raise whole.wrong(name, f"{tower.patches_per_side} patches of a side are not squares of {merge}")


def _read_qwen(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    fields = whole.object("vision_config")
    name = "hidden_size" if tower.kind.startswith("qwen2_vl") else "out_hidden_size"
    fields.expect(name, decoder.hidden_size, f"the decoder has {decoder.hidden_size}")
    return {
        "features": (tower.num_layers,),
        "projector": ProjectorConfig(
            merge=fields.integer("spatial_merge_size", 2, most=_MOST_MERGED),
            tower_norm_eps=1e-6,
            tower_layer_norm=not tower.rms_norms,
            activation="gelu",
            inner_square=True,
        ),
    }


def _read_qwen3(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    fields, name = whole.object("vision_config"), "deepstack_visual_indexes"
    deeper = fields.integers(name, least=0) if fields.has(name) else (8, 16, 24)
    if sorted(set(deeper)) != list(deeper) or not all(layer < tower.num_layers for layer in deeper):
        raise fields.wrong(name, f"must name blocks below {tower.num_layers}, each once, in ascending order")
    if len(deeper) > decoder.num_layers:
        raise fields.wrong(name, f"the decoder has {decoder.num_layers} layers, behind which they are added")
    return {**_read_qwen(whole, tower, decoder), "deeper": tuple(layer + 1 for layer in deeper)}


def _adjust_qwen3_vl_moe(decoder: DecoderConfig) -> DecoderConfig:
    """Its experts' weights are [N, in, out] in one tensor, and the weights of a token's experts always sum to
    1."""

    def adjusted(experts: ExpertsConfig | None) -> ExpertsConfig | None:
        if experts is None:
            return None
        return replace(experts, routing=replace(experts.routing, normalized=True), transposed=True)

    return replace(decoder, experts=tuple(map(adjusted, decoder.experts)))


def _read_qwen3_5(whole: Fields, tower: TowerConfig, decoder: DecoderConfig) -> dict[str, Any]:
    whole.object("vision_config").expect("deepstack_visual_indexes", [], "its decoder has no such layers")
    return _read_qwen(whole, tower, decoder)


_MLP = {"up": ("multi_modal_projector.linear_1",), "down": ("multi_modal_projector.linear_2",)}
_IN_A_MODEL = {
    "language_model.model.": "model.language_model.",
    "language_model.lm_head": "lm_head",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}
_IN_A_PART = {"vision_tower.": "vision_tower.vision_model."}
_SPELLINGS = (_IN_A_PART, _IN_A_MODEL, _IN_A_MODEL | {"vision_tower.": "model.vision_tower.vision_model."})
_OF_IMAGES = "image_token_index", "image_token_id", "image_seq_length", "image_seq_len", "ignore_index"
LLAVA = SeeingFamily(
    towers={"clip_vision_model": CLIP, "siglip_vision_model": SIGLIP, "pixtral": PIXTRAL},
    read=_read_llava,
    decoder="llama",
    tower="vision_tower",
    projector=_MLP,
    text=("^", "language_model."),
    spellings=_SPELLINGS,
    harmless=(*_OF_IMAGES, "vocab_size"),
    harmless_of_text=("is_composition",),
)
MISTRAL3 = SeeingFamily(
    towers={"pixtral": PIXTRAL},
    read=_read_mistral3,
    decoder="mistral",
    tower="vision_tower",
    projector=_MLP
    | {
        "norm": ("multi_modal_projector.norm",),
        "merging": ("multi_modal_projector.patch_merger.merging_layer",),
    },
    text=("^", "language_model."),
    spellings=_SPELLINGS,
    harmless=_OF_IMAGES,
    harmless_of_text=("is_composition",),
)
_OLD_SWITCHES = {"use_resampler": False, "qk_layer_norms": False, "rope_interleaved": False}
IDEFICS3 = SeeingFamily(
    towers={"idefics3_vision": BUCKETING_SIGLIP, "idefics3": BUCKETING_SIGLIP},
    read=_read_idefics3,
    decoder="llama",
    tower="model.vision_model",
    projector={"up": ("model.connector.modality_projection.proj",)},
    text=(r"^model\.", "model.text_model."),
    harmless=(
        *_OF_IMAGES,
        "vocab_size",
        "_pad_token_id",
        "transformers.js_config",
        "use_reentrant_checkpointing",
    ),
    only=_OLD_SWITCHES,
    harmless_of_text=(
        *("perceiver_config", "pixel_shuffle_factor", "neftune_noise_alpha", "is_llama_config"),
        *("transformers.js_config", "_flash_attn_2_enabled"),
    ),
)
SMOLVLM = replace(IDEFICS3, towers={"smolvlm_vision": BUCKETING_SIGLIP, "smolvlm": BUCKETING_SIGLIP})
INTERNVL = SeeingFamily(
    towers={"internvl_vision": INTERN_VIT},
    read=_read_internvl,
    decoder="qwen2",
    tower="vision_tower",
    projector=_MLP | {"layer_norm": ("multi_modal_projector.layer_norm",)},
    text=("^", "language_model."),
    spellings=(_IN_A_MODEL,),
    harmless=_OF_IMAGES,
)
_TOKENS_OF_QWEN = tuple(
    f"{name}_token_id" for name in ("image", "video", "vision", "vision_start", "vision_end")
)
QWEN2_5_VL = SeeingFamily(
    towers={"qwen2_5_vl_vision": QWEN2_5_VIT, "qwen2_5_vl": QWEN2_5_VIT},
    read=_read_qwen,
    decoder="qwen2_5_vl_text",
    decoders={"qwen2_5_vl_text": "qwen2", "qwen2_5_vl": "qwen2"},
    sections=Sections((16, 24, 24), interleaved=False),
    read_most_pixels=read_most_pixels,
    tower="visual",
    projector={"norm": ("visual.merger.ln_q",), "up": ("visual.merger.mlp.0",)}
    | {"down": ("visual.merger.mlp.2",)},
    text=("^", ""),
    spellings=({"model.": "model.language_model.", "visual.": "model.visual."},),
    harmless=("vision_token_id",),
    harmless_of_text=_TOKENS_OF_QWEN,
)
QWEN2_VL = replace(
    QWEN2_5_VL,
    towers={"qwen2_vl_vision": QWEN2_VIT, "qwen2_vl": QWEN2_VIT},
    decoder="qwen2_vl_text",
    decoders={"qwen2_vl_text": "qwen2", "qwen2_vl": "qwen2"},
)
_QWEN3_MERGER = "model.visual.merger"
QWEN3_VL = SeeingFamily(
    towers={"qwen3_vl_vision": QWEN3_VIT, "qwen3_vl": QWEN3_VIT},
    read=_read_qwen3,
    decoder="qwen3_vl_text",
    decoders={"qwen3_vl_text": "qwen3"},
    sections=Sections((24, 20, 20), interleaved=True),
    read_most_pixels=read_most_pixels,
    tower="model.visual",
    projector={"norm": (f"{_QWEN3_MERGER}.norm",), "up": (f"{_QWEN3_MERGER}.linear_fc1",)}
    | {"down": (f"{_QWEN3_MERGER}.linear_fc2",)},
    deeper={
        "layer_norm": ("model.visual.deepstack_merger_list.{layer}.norm",),
        "up": ("model.visual.deepstack_merger_list.{layer}.linear_fc1",),
        "down": ("model.visual.deepstack_merger_list.{layer}.linear_fc2",),
    },
    text=(r"^model\.", "model.language_model."),
)
QWEN3_VL_MOE = replace(
    QWEN3_VL,
    towers={"qwen3_vl_moe_vision": QWEN3_VIT, "qwen3_vl_moe": QWEN3_VIT},
    decoder="qwen3_vl_moe_text",
    decoders={"qwen3_vl_moe_text": "qwen3_moe"},
    only={"norm_topk_prob": True},
    adjust=_adjust_qwen3_vl_moe,
)
QWEN3_5 = replace(
    QWEN3_VL,
    towers={"qwen3_5_vision": QWEN3_VIT, "qwen3_5": QWEN3_VIT},
    read=_read_qwen3_5,
    decoder="qwen3_5_text",
    decoders={"qwen3_5_text": "qwen3_5_text"},
    sections=Sections((11, 11, 10), interleaved=True),
    deeper={},
)
QWEN3_5_MOE = replace(
    QWEN3_5,
    towers={"qwen3_5_moe_vision": QWEN3_VIT, "qwen3_5_moe": QWEN3_VIT},
    decoder="qwen3_5_moe_text",
    decoders={"qwen3_5_moe_text": "qwen3_5_moe_text"},
)
LLAMA4 = SeeingFamily(
    towers={"llama4_vision_model": LLAMA4_VIT},
    read=_read_llama4,
    decoder="llama4_text",
    decoders={"llama4_text": "llama4_text"},
    tower="vision_model",
    projector={
        "up": ("vision_model.vision_adapter.mlp.fc1",),
        "down": ("vision_model.vision_adapter.mlp.fc2",),
        "last": ("multi_modal_projector.linear_1",),
    },
    text=("^", "language_model."),
    read_pixels=read_rounded_pixels,
)
GEMMA3 = SeeingFamily(
    towers={"siglip_vision_model": SIGLIP_AND_NORM},
    read=_read_gemma3,
    decoder="gemma3_text",
    tower="vision_tower",
    projector={
        "average_norm": ("multi_modal_projector.mm_soft_emb_norm",),
        "up": ("multi_modal_projector.mm_input_projection_weight",),
    },
    text=("^", "language_model."),
    spellings=_SPELLINGS,
    harmless=_OF_IMAGES,
    only={BIDIRECTIONAL: False},
    whole_images=lambda fields, window: True,
)
GEMMA4 = SeeingFamily(
    towers={"gemma4_vision": GEMMA4_VIT},
    read=_read_gemma4,
    decoder="gemma4_text",
    only_decoder="Gemma4ForCausalLM",
    tower="model.vision_tower",
    projector={
        "bias": ("model.vision_tower.std_bias",),
        "scale": ("model.vision_tower.std_scale",),
        "up": ("model.embed_vision.embedding_projection",),
    },
    text=(r"^model\.", "model.language_model."),
    unused=rf"model\.(?:audio_tower|embed_audio)\..+|{UNUSED_BESIDE_IMAGES}",
    read_pixels=read_centered_pixels,
    read_most_pixels=read_soft_tokens,
    whole_images=lambda fields, window: window is not None and fields.value(BIDIRECTIONAL) == "vision",
)
GEMMA4_UNIFIED = replace(
    GEMMA4,
    towers={"gemma4_unified_vision": GEMMA4_EMBEDDER},
    read=_read_gemma4_unified,
    decoder="gemma4_unified_text",
    tower="model.vision_embedder",
    read_pixels=partial(read_pixels, normalizes=False),
)
SEEING = {
    "Gemma3ForConditionalGeneration": GEMMA3,
    "Gemma4ForConditionalGeneration": GEMMA4,
    "Gemma4UnifiedForConditionalGeneration": GEMMA4_UNIFIED,
    "Idefics3ForConditionalGeneration": IDEFICS3,
    "InternVLForConditionalGeneration": INTERNVL,
    "Llama4ForConditionalGeneration": LLAMA4,
    "LlavaForConditionalGeneration": LLAVA,
    "Mistral3ForConditionalGeneration": MISTRAL3,
    "Qwen2VLForConditionalGeneration": QWEN2_VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN2_5_VL,
    "Qwen3VLForConditionalGeneration": QWEN3_VL,
    "Qwen3VLMoeForConditionalGeneration": QWEN3_VL_MOE,
    "Qwen3_5MoeForConditionalGeneration": QWEN3_5_MOE,
    "Qwen3_5ForConditionalGeneration": QWEN3_5,
    "SmolVLMForConditionalGeneration": SMOLVLM,
}
"""By the names that config.json gives under `architectures`."""
DEFAULT_SIZES: dict[str, dict[str, int | str]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "gemma4_unified_text": {
        "hidden_size_per_layer_input": 0,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        BIDIRECTIONAL: "vision",
    },
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
"""Fields of text_config that checkpoints leave out where they have the values of the class, by model_type."""
