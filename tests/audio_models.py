"""Tiny checkpoints of models that hear sounds, made by transformers: random weights, and what their
processors and tokenizers read.

    make_audio_model(folder, "qwen2_audio")
    make_audio_model(folder, "voxtral", audio={"num_mel_bins": 12})

The longest clip has 1 s: 100 frames of 10 ms, of which 25 vectors are made (Qwen2-Audio), or 10 (Voxtral, of
a clip that is filled with silence).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.checkpoints import make_tokenizer
from tests.vision_models import _TEXT, WORDS

RATE, SECONDS, BINS = 16000, 1, 16
"""Samples a second, of the longest clip, and of a frame."""
_TOWER = {"num_mel_bins": BINS, "max_source_positions": 50, "initializer_range": 0.25}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_audio": {
        "class": "Qwen2Audio",
        "audio": {"model_type": "qwen2_audio_encoder", "d_model": 32, "encoder_layers": 2}
        | {"encoder_attention_heads": 2, "encoder_ffn_dim": 72},
        "text": {"model_type": "qwen2"},
        "audio_id": "audio_token_index",
        "tokens": {"audio_token": "<|AUDIO|>", "bos": "<|audio_bos|>", "eos": "<|audio_eos|>"},
        "processor": "Qwen2AudioProcessor",
    },
    "voxtral": {
        "class": "Voxtral",
        "audio": {"model_type": "voxtral_encoder", "hidden_size": 24, "num_hidden_layers": 2}
        | {"num_attention_heads": 2, "intermediate_size": 120},
        "text": {"model_type": "llama", "head_dim": 12},
        "audio_id": "audio_token_id",
        "tokens": {"audio_token": "[AUDIO]", "bos": "[BEGIN_AUDIO]"},
        "processor": "VoxtralProcessor",
    },
}


def make_audio_model(
    folder: Path,
    family: str,
    seed: int = 0,
    audio: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    features: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """Writes config, weights, tokenizer, chat template and the files of the processor into the folder, and
    returns it. audio, text: fields of these parts of the configuration. features: fields of
    preprocessor_config.json. fields: of the configuration."""
    made = FAMILIES[family]
    tokens: dict[str, str] = made["tokens"]
    tokenizer = make_tokenizer(WORDS)
    tokenizer.add_special_tokens(list(tokens.values()))
    size = {"vocab_size": tokenizer.get_vocab_size()}
    config = getattr(transformers, f"{made['class']}Config")(
        audio_config=_TOWER | made["audio"] | dict(audio or {}),
        text_config=_TEXT | size | made["text"] | dict(text or {}),
        **{made["audio_id"]: tokenizer.token_to_id(tokens["audio_token"])},
        **fields,
    )
    torch.manual_seed(seed)
    model = getattr(transformers, f"{made['class']}ForConditionalGeneration")(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or not parameter.any():  # those that transformers makes 0 and 1
            torch.nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.1)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
        | {"pad_token": "<|pad|>", "extra_special_tokens": {"audio_token": tokens["audio_token"]}},
    )
    _write(
        folder / "preprocessor_config.json",
        {"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": made["processor"]}
        | {"feature_size": model.config.audio_config.num_mel_bins, "sampling_rate": RATE, "hop_length": 160}
        | {"n_fft": 400, "chunk_length": SECONDS, "n_samples": SECONDS * RATE, "nb_max_frames": 100}
        | {"padding_side": "right", "padding_value": 0.0, "return_attention_mask": True}
        | dict(features or {}),
    )
    (folder / "chat_template.jinja").write_text(_TEMPLATE.replace("PLACEHOLDER", written(family)))
    return folder


def placeholder(family: str) -> str:
    """Returns the token that stands for a sound, and for each of its vectors."""
    token: str = FAMILIES[family]["tokens"]["audio_token"]
    return token


def written(family: str) -> str:
    """Returns what a template has for a sound."""
    tokens = FAMILIES[family]["tokens"]
    return tokens["bos"] + tokens["audio_token"] + tokens.get("eos", "")


_TEMPLATE = """\
{%- for message in messages -%}
<|begin|>{{ message['role'] }}: \
{%- if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'audio' -%}
PLACEHOLDER
{%- else -%}
{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|begin|>assistant: {%- endif -%}
"""


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields))
