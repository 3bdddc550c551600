"""Encoders of sounds beside decoders of any family.

    Qwen2-Audio    Whisper's encoder, the mean of two states, a norm, and one linear layer
    Voxtral        Whisper's encoder with a norm behind it, four states side by side, and a feed-forward part;
                   it always hears a clip of full length, which the frontend fills with silence

An entry says how fields of config.json are read and what the checkpoint calls the parts.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.config.audio import AudioConfig
from worker.config.decoder import DecoderConfig, DecoderFamily
from worker.config.hf_config import HARMLESS, MAX_LAYERS, Fields, read_activation
from worker.config.rope import Sections

_PART = "audio_config"


@dataclass(frozen=True, kw_only=True)
class HearingFamily:
    """One architecture of an encoder of sounds and a decoder: see worker.families.seeing.SeeingFamily."""

    kind: str
    """model_type of audio_config."""
    read: Callable[[Fields, Fields], dict[str, Any]]
    """From config.json and its audio_config: the fields of AudioConfig that say what becomes a vector. Raises
    StartupError."""
    projector: Mapping[str, tuple[str, ...]]
    """Path of a layer of the projector -> modules of the checkpoint."""
    decoder: str
    harmless: Collection[str] = ()
    decoders: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=lambda: {"use_mrope": False})
    harmless_of_text: Collection[str] = ()
    sections: Sections | None = None
    only_decoder = ""
    text = "^", "language_model."
    spellings: tuple[Mapping[str, str], ...] = (
        {
            "language_model.model.": "model.language_model.",
            "language_model.lm_head": "lm_head",
            "audio_tower.": "model.audio_tower.",
            "multi_modal_projector.": "model.multi_modal_projector.",
        },
    )

    def adjust(self, decoder: DecoderConfig) -> DecoderConfig:
        """Returns the decoder as it stands beside an encoder."""
        return decoder

    def whole_images(self, fields: Fields, window: int | None) -> bool:
        """Returns whether tokens of an item see all of it in a layer."""
        return False

    def read_vision(self, whole: Fields, folder: Path, decoder: DecoderConfig) -> AudioConfig:
        """Reads the encoder's configuration. whole: config.json. Raises StartupError."""
        fields = whole.object(_PART)
        if fields.text("model_type", self.kind) != self.kind:
            raise fields.wrong("model_type", f"only this is known: {self.kind}")
        sizes = {name: _read_either(fields, spellings, size) for name, (spellings, size) in _SIZES.items()}
        width, heads = sizes["hidden_size"], sizes["num_heads"]
        if width % heads:
            raise fields.wrong("num_attention_heads", f"must divide hidden_size ({width})")
        fields.expect(
            "head_dim", width // heads, f"must be hidden_size / num_attention_heads ({width // heads})"
        )
        fields.expect("num_key_value_heads", heads, f"there are {heads} heads")
        fields.expect("scale_embedding", False)
        values: dict[str, Any] = {**sizes, **self.read(whole, fields)}
        config = AudioConfig(**values, activation=read_activation(fields, "activation_function", "gelu"))
        if config.max_states % config.group:
            raise fields.wrong("max_source_positions", f"must be a multiple of {config.group}")
        fields.refuse_unknown({*HARMLESS, *_HARMLESS})
        return config

    def names_of(self, decoder: DecoderFamily) -> dict[str, tuple[str, ...]]:
        """Returns the names of all layers."""
        return {
            **self.text_names(decoder.names),
            **{
                f"vision.{path}": tuple(f"audio_tower.{name}" for name in names)
                for path, names in _TOWER.items()
            },
            **{f"vision.{path}": names for path, names in self.projector.items()},
        }

    def text_names(self, names: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Returns the names of a decoder as this checkpoint has them."""
        return {path: tuple(re.sub(*self.text, name) for name in modules) for path, modules in names.items()}

    def unused_of(self, decoder: DecoderFamily) -> str:
        """Returns the pattern of the tensors that the model does not need."""
        return rf"(?:language_model\.)?(?:{decoder.unused})"


_SIZES = {
    "num_bins": (("num_mel_bins",), 128),
    "max_states": (("max_source_positions",), 1500),
    "hidden_size": (("d_model", "hidden_size"), 1280),
    "num_layers": (("encoder_layers", "num_hidden_layers"), 32),
    "num_heads": (("encoder_attention_heads", "num_attention_heads"), 20),
    "intermediate_size": (("encoder_ffn_dim", "intermediate_size"), 5120),
}
"""Field of AudioConfig -> those of audio_config, and the value where it is not said."""
_HARMLESS = "encoder_layerdrop", "layerdrop", "init_std", "vocab_size"
_LAYER = "layers.{layer}"
_TOWER = {
    "first": ("conv1",),
    "second": ("conv2",),
    "positions": ("embed_positions.weight",),
    "blocks.{layer}.attention_norm": (f"{_LAYER}.self_attn_layer_norm",),
    "blocks.{layer}.attention.qkv": tuple(f"{_LAYER}.self_attn.{part}_proj" for part in "qkv"),
    "blocks.{layer}.attention.output": (f"{_LAYER}.self_attn.out_proj",),
    "blocks.{layer}.mlp_norm": (f"{_LAYER}.final_layer_norm",),
    "blocks.{layer}.mlp.up": (f"{_LAYER}.fc1",),
    "blocks.{layer}.mlp.down": (f"{_LAYER}.fc2",),
    "last_norm": ("layer_norm",),
}
"""Path of a layer -> modules of the checkpoint, from the encoder on."""


def _read_either(fields: Fields, spellings: tuple[str, ...], default: int) -> int:
    """Returns a size that has several names."""
    name = next((each for each in spellings if fields.has(each)), spellings[0])
    if name in _SIZES["num_layers"][0]:
        return fields.integer(name, default, most=MAX_LAYERS)
    return fields.integer(name, default)


def _read_qwen2_audio(whole: Fields, fields: Fields) -> dict[str, Any]:
    return {"group": 2, "averages": True, "projector_bias": True}


def _read_voxtral(whole: Fields, fields: Fields) -> dict[str, Any]:
    width, inner = (_read_either(fields, *_SIZES[name]) for name in ("hidden_size", "intermediate_size"))
    if inner % width:
        raise fields.wrong("intermediate_size", f"must be a multiple of hidden_size ({width})")
    return {
        "group": inner // width,
        "projector_activation": read_activation(whole, "projector_hidden_act", "gelu"),
    }


QWEN2_AUDIO = HearingFamily(
    kind="qwen2_audio_encoder",
    read=_read_qwen2_audio,
    projector={"up": ("multi_modal_projector.linear",)},
    decoder="qwen2",
    harmless=("audio_token_index", "ignore_index", "vocab_size"),
)
VOXTRAL = HearingFamily(
    kind="voxtral_encoder",
    read=_read_voxtral,
    projector={"up": ("multi_modal_projector.linear_1",), "down": ("multi_modal_projector.linear_2",)},
    decoder="llama",
    harmless=("hidden_size", "vocab_size"),
)
HEARING = {
    "Qwen2AudioForConditionalGeneration": QWEN2_AUDIO,
    "VoxtralForConditionalGeneration": VOXTRAL,
}
"""By the names that config.json gives under `architectures`."""
DEFAULT_SIZES = {
    "qwen2": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
}
"""Fields of text_config that checkpoints leave out where they have the values of the class, by model_type."""
