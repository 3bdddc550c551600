"""Tiny checkpoints of models that see images, made by transformers: random weights, and what their processors
and tokenizers read.

    make_vision_model(folder, "llava")
    make_vision_model(folder, "llava", vision={"hidden_act": "gelu"}, projector_hidden_act="relu")

Items of images are small: 56 x 56 pixels for LLaVA (16 vectors), tiles of 32 x 32 for Idefics3 and SmolVLM (4
vectors), tiles of 28 x 28 for InternVL (4 vectors), 32 x 32 for Gemma 3 (4 vectors), and any multiple of 8
for Pixtral (a vector for each 8 x 8 pixels) or of 16 for Mistral 3 and of 8 for Qwen-VL and Gemma 4 (a vector
for each 16 x 16 or 8 x 8 pixels).
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig

from tests.checkpoints import BOS_ID, EOS_ID, PAD_ID, make_tokenizer

WORDS = 320
"""Tokens of the vocabulary that stand for text; those of images follow."""
_TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 1024,
    "initializer_range": 0.25,
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "initializer_range": 0.25,
}
_CLIP_NORM: dict[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_PROCESSOR: dict[str, Any] = {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "rescale_factor": 0.00392156862745098,
    "resample": 3,
}
_MISTRAL_TOKENS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
_IDEFICS_TOKENS = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
    **{f"row_{y}_col_{x}": f"<row_{y}_col_{x}>" for y in range(1, 7) for x in range(1, 7)},
}
_IDEFICS_IMAGES = _PROCESSOR | {
    "resample": 1,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_image_splitting": True,
    "do_pad": True,
    "size": {"longest_edge": 96},
    "max_image_size": {"longest_edge": 32},
}
_QWEN_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
_QWEN3_ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 3, 1]}
_QWEN_TOWER = {"depth": 3, "num_heads": 2, "patch_size": 4, "out_hidden_size": 48}
_QWEN_IMAGES = (
    _PROCESSOR
    | _CLIP_NORM
    | {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2}
    | {"temporal_patch_size": 2, "size": {"shortest_edge": 128, "longest_edge": 2304}}
)
_QWEN_VIDEOS = _QWEN_IMAGES | {
    "video_processor_type": "Qwen3VLVideoProcessor",
    "size": {"shortest_edge": 256, "longest_edge": 6000},
}
del _QWEN_VIDEOS["image_processor_type"]
_PIXTRAL_IMAGES = _PROCESSOR | _CLIP_NORM | {"image_processor_type": "PixtralImageProcessor"}
_GEMMA4_TOKENS = {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"}
_GEMMA4_IMAGES = _PROCESSOR | {
    "do_normalize": False,
    "image_mean": [0.0, 0.0, 0.0],
    "image_std": [1.0, 1.0, 1.0],
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "max_soft_tokens": 70,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llava": {
        "class": "Llava",
        "vision": {"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14},
        "text": {"model_type": "llama"},
        "fields": {"image_seq_length": 16, "projector_hidden_act": "gelu"},
        "image_id": "image_token_index",
        "tokens": {"image_token": "<image>"},
        "images": _PROCESSOR
        | _CLIP_NORM
        | {
            "image_processor_type": "CLIPImageProcessor",
            "do_center_crop": True,
            "crop_size": {"height": 56, "width": 56},
            "size": {"shortest_edge": 56},
        },
        "processor": {
            "processor_class": "LlavaProcessor",
            "image_token": "<image>",
            "patch_size": 14,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        },
    },
    "pixtral": {
        "class": "Llava",
        "vision": {"model_type": "pixtral", "image_size": 64, "patch_size": 8},
        "text": {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
        "fields": {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        "image_id": "image_token_index",
        "tokens": _MISTRAL_TOKENS,
        "images": _PIXTRAL_IMAGES | {"patch_size": {"height": 8, "width": 8}, "size": {"longest_edge": 64}},
        "processor": {"processor_class": "PixtralProcessor", "patch_size": 8, **_MISTRAL_TOKENS},
    },
    "mistral3": {
        "class": "Mistral3",
        "vision": {"model_type": "pixtral", "image_size": 64, "patch_size": 8},
        "text": {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
        "fields": {"vision_feature_layer": -1, "spatial_merge_size": 2, "tie_word_embeddings": False},
        "image_id": "image_token_index",
        "tokens": _MISTRAL_TOKENS,
        "images": _PIXTRAL_IMAGES | {"patch_size": 8, "size": {"longest_edge": 64}},
        "processor": {
            "processor_class": "PixtralProcessor",
            "patch_size": 8,
            "spatial_merge_size": 2,
            **_MISTRAL_TOKENS,
        },
    },
    "idefics3": {
        "class": "Idefics3",
        "vision": {"model_type": "idefics3_vision", "image_size": 32, "patch_size": 8},
        "text": {"model_type": "llama"},
        "fields": {"scale_factor": 2},
        "image_id": "image_token_id",
        "tokens": _IDEFICS_TOKENS,
        "images": _IDEFICS_IMAGES | {"image_processor_type": "Idefics3ImageProcessor"},
        "processor": {"processor_class": "Idefics3Processor", "image_seq_len": 4},
    },
    "smolvlm": {
        "class": "SmolVLM",
        "vision": {"model_type": "smolvlm_vision", "image_size": 32, "patch_size": 4},
        "text": {"model_type": "llama"},
        "fields": {"scale_factor": 4},
        "image_id": "image_token_id",
        "tokens": _IDEFICS_TOKENS,
        "images": _IDEFICS_IMAGES | {"image_processor_type": "SmolVLMImageProcessor"},
        "processor": {"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
    },
    "internvl": {
        "class": "InternVL",
        "vision": {"model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [7, 7]}
        | {"attention_bias": True},
        "text": {"model_type": "qwen2"},
        "fields": {"image_seq_length": 4, "tie_word_embeddings": False},
        "image_id": "image_token_id",
        "tokens": {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
        },
        "images": _PROCESSOR
        | {
            "image_processor_type": "GotOcr2ImageProcessor",
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
            "size": {"height": 28, "width": 28},
            "crop_to_patches": True,
            "min_patches": 1,
            "max_patches": 6,
        },
        "processor": {"processor_class": "InternVLProcessor", "image_seq_length": 4},
    },
    "qwen2_vl": {
        "class": "Qwen2VL",
        "vision": {"model_type": "qwen2_vl_vision", "depth": 3, "num_heads": 2, "patch_size": 4}
        | {"embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2},
        "text": {"model_type": "qwen2_vl_text"}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 2, 2]}},
        "fields": {"tie_word_embeddings": False},
        "image_id": "image_token_id",
        "tokens": _QWEN_TOKENS,
        "images": _QWEN_IMAGES,
        "processor": {"processor_class": "Qwen2VLProcessor"},
    },
    "qwen2_5_vl": {
        "class": "Qwen2_5_VL",
        "vision": _QWEN_TOWER
        | {"model_type": "qwen2_5_vl_vision", "window_size": 16, "fullatt_block_indexes": [1]},
        "text": {"model_type": "qwen2_5_vl_text"}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 2, 3]}},
        "fields": {"tie_word_embeddings": False},
        "image_id": "image_token_id",
        "tokens": _QWEN_TOKENS,
        "images": _QWEN_IMAGES,
        "processor": {"processor_class": "Qwen2_5_VLProcessor"},
    },
    "qwen3_5": {
        "class": "Qwen3_5",
        "vision": _QWEN_TOWER | {"model_type": "qwen3_5_vision", "num_position_embeddings": 9},
        "text": {"model_type": "qwen3_5_text", "head_dim": 16, "initializer_range": 0.15}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4}
        | {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
        | {"layer_types": ["linear_attention", "full_attention"]}
        | {"rope_parameters": _QWEN3_ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}},
        "fields": {"tie_word_embeddings": False},
        "image_id": "image_token_id",
        "tokens": _QWEN_TOKENS,
        "images": _QWEN_IMAGES,
        "videos": _QWEN_VIDEOS,
        "processor": {"processor_class": "Qwen3VLProcessor"},
    },
    "qwen3_vl": {
        "class": "Qwen3VL",
        "vision": _QWEN_TOWER
        | {"model_type": "qwen3_vl_vision", "num_position_embeddings": 16}
        | {"deepstack_visual_indexes": [0, 2]},
        "text": {"model_type": "qwen3_vl_text", "head_dim": 16, "rope_parameters": _QWEN3_ROPE},
        "fields": {"tie_word_embeddings": False},
        "image_id": "image_token_id",
        "tokens": _QWEN_TOKENS,
        "images": _QWEN_IMAGES,
        "videos": _QWEN_VIDEOS,
        "processor": {"processor_class": "Qwen3VLProcessor"},
    },
    "llama4": {
        "class": "Llama4",
        "vision": {"model_type": "llama4_vision_model", "image_size": 28, "patch_size": 7}
        | {"intermediate_size": 128, "vision_output_dim": 40, "projector_input_dim": 40}
        | {"projector_output_dim": 40},
        "text": {"model_type": "llama4_text", "head_dim": 16, "intermediate_size_mlp": 56}
        | {"num_local_experts": 3, "interleave_moe_layer_step": 2, "no_rope_layer_interval": 2}
        | {"attention_chunk_size": 8, "intermediate_size": 32},
        "fields": {"tie_word_embeddings": False},
        "image_id": "image_token_index",
        "tokens": {
            "boi_token": "<|image|>",
            "image_token": "<|patch|>",
            "start_of_image_token": "<|image_start|>",
            "end_of_image_token": "<|image_end|>",
            "tile_x_separator_token": "<|tile_x_separator|>",
            "tile_y_separator_token": "<|tile_y_separator|>",
        },
        "images": _PROCESSOR
        | {
            "image_processor_type": "Llama4ImageProcessor",
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "resample": 2,
            "size": {"height": 28, "width": 28},
            "max_patches": 6,
            "resize_to_max_canvas": False,
        },
        "processor": {"processor_class": "Llama4Processor", "patch_size": 7, "pixel_shuffle_ratio": 0.5},
    },
    "qwen3_vl_moe": {
        "class": "Qwen3VLMoe",
        "vision": _QWEN_TOWER
        | {"model_type": "qwen3_vl_moe_vision", "num_position_embeddings": 16}
        | {"deepstack_visual_indexes": [1, 2]},
        "text": {"model_type": "qwen3_vl_moe_text", "head_dim": 16, "rope_parameters": _QWEN3_ROPE}
        | {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"tie_word_embeddings": False},
        "fields": {"tie_word_embeddings": False},
        "image_id": "image_token_id",
        "tokens": _QWEN_TOKENS,
        "images": _QWEN_IMAGES,
        "videos": _QWEN_VIDEOS,
        "processor": {"processor_class": "Qwen3VLProcessor"},
    },
    "gemma3": {
        "class": "Gemma3",
        "vision": {"model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8},
        "text": {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 9}
        | {"layer_types": ["sliding_attention", "full_attention"]},
        "fields": {"mm_tokens_per_image": 4},
        "image_id": "image_token_id",
        "tokens": {
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        "images": _PROCESSOR
        | {
            "image_processor_type": "Gemma3ImageProcessor",
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "resample": 2,
            "size": {"height": 32, "width": 32},
            "do_pan_and_scan": None,
        },
        "processor": {"processor_class": "Gemma3Processor", "image_seq_length": 4},
    },
    "gemma4": {
        "class": "Gemma4",
        "vision": {"model_type": "gemma4_vision", "patch_size": 4, "pooling_kernel_size": 2}
        | {"head_dim": 16, "num_key_value_heads": 2, "position_embedding_size": 160}
        | {"use_clipped_linears": True},
        "text": {"model_type": "gemma4_text", "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 24}
        | {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}
        | {"sliding_window": 9, "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 340},
        "fields": {"audio_config": None},
        "image_id": "image_token_id",
        "tokens": _GEMMA4_TOKENS,
        "images": _GEMMA4_IMAGES | {"image_processor_type": "Gemma4ImageProcessor"},
        "processor": {"processor_class": "Gemma4Processor", "image_seq_length": 70},
    },
    "gemma4_unified": {
        "class": "Gemma4Unified",
        "tower": {},
        "vision": {"model_type": "gemma4_unified_vision", "patch_size": 4, "pooling_kernel_size": 2}
        | {"mm_embed_dim": 40, "output_proj_dims": 40, "mm_posemb_size": 80, "initializer_range": 0.25},
        "text": {"model_type": "gemma4_unified_text", "head_dim": 16, "global_head_dim": 24}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
        | {"num_hidden_layers": 3, "sliding_window": 3},
        "fields": {"audio_config": None},
        "image_id": "image_token_id",
        "tokens": _GEMMA4_TOKENS,
        "images": _GEMMA4_IMAGES | {"image_processor_type": "Gemma4UnifiedImageProcessor"},
        "processor": {"processor_class": "Gemma4UnifiedProcessor", "image_seq_length": 70},
    },
}
"""By family: the prefix of its classes in transformers, fields of its configurations, and what its files say
of images."""


def placeholder(family: str) -> str:
    """Returns the token that templates have once per image."""
    tokens: dict[str, str] = FAMILIES[family]["tokens"]
    return (
        vector_token(family)
        if family.startswith("gemma4")
        else tokens.get("boi_token") or vector_token(family)
    )


def vector_token(family: str) -> str:
    """Returns the token that stands for a vector of an image."""
    tokens: dict[str, str] = FAMILIES[family]["tokens"]
    return tokens.get("context_image_token") or tokens["image_token"]


def make_vision_model(
    folder: Path,
    family: str,
    seed: int = 0,
    vision: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    images: Mapping[str, Any] | None = None,
    processor: Mapping[str, Any] | None = None,
    prefix: str = "",
    **fields: Any,
) -> Path:
    """Writes config, weights, tokenizer, chat template and the files of the processor into the folder, and
    returns it. vision, text: fields of these parts of the configuration. images, processor: fields of
    preprocessor_config.json and processor_config.json. prefix: of other classes. fields: of the
    configuration."""
    made = FAMILIES[family]
    tokens: dict[str, str] = made["tokens"]
    prefix = prefix or made["class"]
    tokenizer = make_tokenizer(WORDS)
    tokenizer.add_special_tokens(list(tokens.values()))
    config = getattr(transformers, f"{prefix}Config")(
        vision_config=_part(made.get("tower", _TOWER) | made["vision"] | dict(vision or {})),
        text_config=_part(
            _TEXT | {"vocab_size": tokenizer.get_vocab_size()} | made["text"] | dict(text or {})
        ),
        **{made["image_id"]: tokenizer.token_to_id(vector_token(family))},
        **{
            f"{name}_id": tokenizer.token_to_id(text)
            for name, text in tokens.items()
            if name == "video_token"
        },
        **made["fields"] | fields,
    )
    torch.manual_seed(seed)
    model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config)
    for name, bound in model.named_buffers():
        if name.endswith(("_min", "_max")):  # of what is clipped: some values are, of one product in two
            is_far = "q_proj" in name or "up_proj" in name
            bound.fill_(math.copysign(math.inf if is_far else 1.5, bound))
        elif "vision_tower.std_" in name:
            torch.nn.init.normal_(bound, mean=float(name.endswith("scale")), std=0.1)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or not parameter.any():  # those that transformers makes 0 and 1
            torch.nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.1)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
        | {"pad_token": "<|pad|>", "extra_special_tokens": tokens},
    )
    named = {"processor_class": made["processor"]["processor_class"]}
    _write(folder / "preprocessor_config.json", made["images"] | named | dict(images or {}))
    _write(folder / "processor_config.json", made["processor"] | dict(processor or {}))
    if "videos" in made:
        _write(folder / "video_preprocessor_config.json", made["videos"])
    template = _TEMPLATE.replace("PLACEHOLDER", _written(tokens, placeholder(family)))
    template = template.replace("VIDEO", _written(tokens, tokens.get("video_token", "")))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def _written(tokens: Mapping[str, str], placeholder: str) -> str:
    """Returns what a template has for an image."""
    return tokens.get("vision_start_token", "") + placeholder + tokens.get("vision_end_token", "")


_TEMPLATE = """\
{%- for message in messages -%}
<|begin|>{{ message['role'] }}: \
{%- if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
PLACEHOLDER
{%- elif part['type'] == 'video' -%}
VIDEO
{%- else -%}
{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|begin|>assistant: {%- endif -%}
"""


def _part(fields: dict[str, Any]) -> Any:
    """Returns the configuration of a tower or of a decoder."""
    return AutoConfig.for_model(**fields)


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")
