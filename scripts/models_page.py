"""Writes docs/models.md from the registries of the worker and the models of the tests."""

import dataclasses
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.audio_models import FAMILIES as AUDIO_MODELS
from tests.checkpoints import ENCODERS, FAMILIES, architecture, config_class
from tests.transformers_models import DRIVEN, REFUSED
from tests.vision_models import FAMILIES as VISION_MODELS
from tests.worker.audio.test_parity import VARIANTS as OF_SOUNDS
from tests.worker.cpu.fused_decoder.test_decoder import FAMILIES as DENSE_IN_PROGRAMS
from tests.worker.cpu.fused_decoder.test_experts import FAMILIES as EXPERTS_IN_PROGRAMS
from tests.worker.cuda.test_encoders import VARIANTS as ENCODERS_ON_CUDA
from tests.worker.cuda.test_parity import VARIANTS as ON_CUDA
from tests.worker.test_encoders import VARIANTS as OF_ENCODERS
from tests.worker.test_parity import VARIANTS
from tests.worker.vision.test_parity import VARIANTS as OF_IMAGES
from worker.adapters.targets import find_targets
from worker.config.decoder import DecoderConfig
from worker.config.encoder import EncoderConfig
from worker.config.gemma4 import Gemma4Config
from worker.config.gguf import GGUF_FAMILIES
from worker.families.hearing import HEARING
from worker.families.registry import DECODERS, read_model_config
from worker.families.seeing import SEEING
from worker.models.registry import FAMILIES as MODELS
from worker.parallel import Placement

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
HEAD = """# Models

Made by `python -m scripts.models_page` from the worker's registries and the models of the tests; a test
fails when it is stale. A name of the first column under `architectures` in `config.json` is what a family
is known by.

## Native families

Each is computed by our own layers, in float32 and bfloat16 (float16 is widened to float32 on a CPU), on
CPUs and CUDA devices (except what says that it is on CPUs alone), from safetensors, plain or in any of the
[quantized formats](checkpoints.md), and from GGUF where that is said. `--quantization int8` takes all of them
on a CPU. Models with gated delta nets or Mamba-2 layers have
a prefix cache by checkpoints of their states
([scheduling.md](scheduling.md#layers-that-keep-a-state)).

`tests/worker/test_parity.py` makes random weights with `transformers` in several shapes of each family (the
number is in the table) and compares logits (1e-4 of their range) and greedy tokens: cold, in odd chunks,
with shuffled blocks, and resumed. *Program* says that `tests/worker/cpu/fused_decoder` holds the CPU's
one-call program to the layers, bit for bit; *CUDA*, that `tests/worker/cuda/test_parity.py` compares the
kernels of that device with `transformers`, in Triton's interpreter.

"""
ENCODERS_HEAD = """
## Encoders

Their tokens see those before and behind them, so that a prompt is computed in one step. They
[embed](embeddings.md#encoders) and generate nothing. `tests/worker/test_encoders.py` compares pooled
vectors with `transformers` (1e-5 of the largest value), and bits alone with those among others. *CUDA* says
that `tests/worker/cuda/test_encoders.py` compares the kernels of that device with a CPU's vectors, in
Triton's interpreter.

| architecture | parts, where they differ from Llama's | shapes | program | CUDA |
| --- | --- | ---: | --- | --- |
"""
IMAGES_HEAD = """
## Images

Encoders of images beside a decoder of any family above but OPT, which `text_config.model_type` names;
those of Gemma 4, Llama 4 and Qwen have their own decoders alone. An image, or a tile of one, becomes
vectors in place of tokens; it is encoded alone, so that vectors are a function of weights and image. Towers
are whole on each rank of `--tensor-parallel-size`; `--pipeline-parallel-size` and adapters of towers are
refused; `--quantization` rounds the products of towers, too. On CPUs, and on CUDA devices, which have not run
them yet, layer by layer; Gemma 4 on CPUs alone.
Those of Qwen have positions of three axes ([images.md](images.md#positions-of-qwens-images)). The text alone
is served from a checkpoint without files that say what pixels become, and, of Llama 4, Qwen3.5 and Gemma 4,
over several stages.

`tests/worker/vision` makes random weights with `transformers` in several shapes of each family (the number is
in the table) and compares pixels (bit for bit, with its backend of Pillow; Llama 4 and Gemma 4 12B have
none), vectors and logits (1e-4 of their range) and greedy tokens; and bits of a prompt alone, in chunks,
beside others, preempted, and on several ranks. Text has the bits of the decoder without the encoder.

| architecture | towers, by `vision_config.model_type` | shapes |
| --- | --- | ---: |
"""
AUDIO_HEAD = """
## Sounds

Whisper's encoder beside a decoder of any family above but OPT and Gemma 4, which `text_config.model_type`
names ([audio.md](audio.md)); on CPUs alone, layer by layer. `tests/worker/audio` compares vectors, logits and
greedy tokens with `transformers` as for images, and bits of a prompt in every step;
`tests/frontend/audio/test_log_mel.py` compares spectrograms.

| architecture | encoder, by `audio_config.model_type` | shapes |
| --- | --- | ---: |
"""
ADAPTERS_HEAD = """
## Adapters

What [adapters](adapters.md) may change in the models of the tests, by the names that `target_modules` and
`target_parameters` of `peft` have for it; on a GPU, too.
`tests/worker/adapters/test_against_peft.py` compares the linear layers of each decoder, and experts, heads
and embeddings of some, with the weights that `peft` merges.

| architecture | modules | parameters of all experts |
| --- | --- | --- |
"""
DRIVEN_HEAD = """
## By transformers' code

Other decoders run by the modelling code of `transformers`
([transformers-backend.md](transformers-backend.md)), on CPUs. `packages/pagewire-transformers/tests` holds
these to `transformers` in the same way:

"""
REFUSED_HEAD = """
Every other model is tried out when it is loaded, and refused where that code cannot be driven. The tests
have one of each kind, with `--model-impl transformers`:

| model | reason |
| --- | --- |
"""
_PARTS = {
    "activation": "{}",
    "attention_gate": "attention with a gate",
    "bidirectional": "attention to both sides",
    "attention_scale": "own scale of scores",
    "chunked": "attention within chunks",
    "deltas": "gated delta nets in {} of {} layers of the tests",
    "embedding_scale": "scaled embeddings",
    "experts": "experts",
    "first_norm": "no norm before the first attention",
    "gated": "plain feed-forward",
    "head_norms": "norms of queries and keys ({})",
    "last_norm": "no norm behind the blocks",
    "latent": "latent attention",
    "logit_cap": "soft cap of logits",
    "logit_scale": "scaled logits",
    "gate_scale": "scaled gates",
    "mambas": "Mamba-2 in {} of {} layers of the tests",
    "mambas_attend": "attention beside Mamba-2",
    "mlp_bias": "feed-forward biases",
    "norm_kind": "{}",
    "norm_offset": "norm weights + {:g}",
    "norm_place": "`{}`",
    "output_bias": "bias after attention",
    "qkv_bias": "biases of queries, keys, values",
    "residual_scale": "scaled residuals",
    "score_cap": "soft cap of scores",
    "sinks": "attention sinks",
    "temperature": "temperature of queries by position",
}
"""How the page calls the fields of DecoderConfig that differ from Llama's."""
_UNSHOWN = {"mixed_scale", "position_offset", "rounds_embedding_scale", "transposed"}
_GEMMA4 = (
    "heads of two sizes, layers that share keys and values, per-layer embeddings, norms of values, experts"
    " beside the feed-forward part (layer by layer, on CPUs alone)"
)


def page() -> str:
    """Returns the whole page."""
    rows = [*(row(name) for name in FAMILIES), *rows_beside_images()]
    table = ["| architecture | parts, where they differ from Llama's | shapes | program | CUDA | GGUF |"]
    table += ["| --- | --- | ---: | --- | --- | --- |", *sorted(rows)]
    refused = [f"| {model} | {reason} |" for model, (_, reason) in sorted(REFUSED.items())]
    driven = ", ".join(f"`{name}`" for name in sorted(DRIVEN))
    return (
        HEAD
        + "\n".join(table)
        + "\n"
        + ENCODERS_HEAD
        + "".join(sorted(f"{encoder_row(name)}\n" for name in ENCODERS))
        + IMAGES_HEAD
        + "".join(sorted(f"{images_row(name)}\n" for name in SEEING))
        + AUDIO_HEAD
        + "".join(sorted(f"{audio_row(name)}\n" for name in HEARING))
        + ADAPTERS_HEAD
        + "".join(sorted(f"{adapters_row(name)}\n" for name in (*FAMILIES, *ENCODERS)))
        + DRIVEN_HEAD
        + driven
        + ".\n"
        + REFUSED_HEAD
        + "\n".join(refused)
        + "\n"
    )


def row(family: str) -> str:
    """Returns the row of a family of tests.checkpoints."""
    config = config_of(family)
    shapes = 1 + Counter(name for name, _ in VARIANTS.values())[family]
    gguf = any(each.architecture == config.architecture for each in GGUF_FAMILIES.values())
    cuda = any(name == family for name, _ in ON_CUDA.values())
    marks = [
        "yes" if held else "" for held in (family in {*DENSE_IN_PROGRAMS, *EXPERTS_IN_PROGRAMS}, cuda, gguf)
    ]
    return " | ".join([f"| `{config.architecture}`", ", ".join(parts(config)), str(shapes), *marks]) + " |"


def encoder_row(family: str) -> str:
    """Returns the row of an encoder of tests.checkpoints."""
    shapes = Counter(name for name, _ in OF_ENCODERS.values())[family]
    cuda = any(name == family for name, _ in ENCODERS_ON_CUDA.values())
    marks = ["yes" if held else "" for held in (family in DENSE_IN_PROGRAMS, cuda)]
    shown = ", ".join(parts(config_of(family)))
    return " | ".join([f"| `{architecture(family)}`", shown, str(shapes), *marks]) + " |"


def images_row(architecture: str) -> str:
    """Returns the row of an encoder of images."""
    families = {
        name
        for name, made in VISION_MODELS.items()
        if f"{made['class']}ForConditionalGeneration" == architecture
    }
    shapes = sum(
        f"{changes['prefix']}ForConditionalGeneration" == architecture
        if "prefix" in changes
        else family in families
        for family, changes in OF_IMAGES.values()
    )
    towers = ", ".join(f"`{kind}`" for kind in SEEING[architecture].towers)
    return f"| `{architecture}` | {towers} | {shapes} |"


def audio_row(architecture: str) -> str:
    """Returns the row of an encoder of sounds."""
    families = {
        name
        for name, made in AUDIO_MODELS.items()
        if f"{made['class']}ForConditionalGeneration" == architecture
    }
    shapes = sum(family in families for family, _ in OF_SOUNDS.values())
    return f"| `{architecture}` | `{HEARING[architecture].kind}` | {shapes} |"


def adapters_row(family: str) -> str:
    """Returns the row of what adapters of a family may change: the last names of its modules, and of the
    parameters, in the order of the layers."""
    config = config_of(family)
    model_family = MODELS[config.architecture]
    model = model_family.build(config, Placement(torch.float32, torch.device("meta")))
    found = find_targets(model, model_family.names, model_family.optional_prefix, None)
    modules = map(_last_name, (*found.embeddings, *found.targets))
    stacked = (f"{_last_name(name)}.{each}" for name, those in found.stacked.items() for each in those)
    columns = (", ".join(f"`{each}`" for each in dict.fromkeys(names)) for names in (modules, stacked))
    return " | ".join([f"| `{architecture(family)}`", *columns]) + " |"


def _last_name(module: str) -> str:
    *_, block, _, last = ("", "", *module.split("."))
    return f"experts.N.{last}" if block == "experts" else last


def rows_beside_images() -> Iterator[str]:
    """Yields the rows of families whose decoder is a part of a checkpoint that sees images."""
    plain = {family.read: name for name, family in DECODERS.items() if not family.nested}
    for name, family in DECODERS.items():
        if family.nested and name not in SEEING:
            yield f"| `{name}` | the text, as `{plain[family.read]}` | 2 |  |  |  |"


def config_of(family: str) -> DecoderConfig:
    """Returns the configuration of a family as the tests make it, read as loading reads it."""
    made = config_class(family)(**{"vocab_size": 320, **(FAMILIES | ENCODERS)[family][1]})
    stored: dict[str, Any] = made.to_diff_dict() | {"architectures": [architecture(family)]}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        stored.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(stored))
        config = read_model_config(Path(folder))
        assert isinstance(config, DecoderConfig)
        return config


def parts(config: DecoderConfig) -> Iterable[str]:
    """Returns what a model has that Llama has not."""
    found = []
    for field in dataclasses.fields(DecoderConfig):
        value = getattr(config, field.name)
        if field.default is dataclasses.MISSING or value == field.default or field.name in _UNSHOWN:
            continue
        shown = [value.value if isinstance(value, Enum) else value]
        if field.name in ("deltas", "mambas"):
            shown = [sum(map(bool, value)), len(value)]
        found.append(_PARTS.get(field.name, field.name.replace("_", " ")).format(*shown))
    if config.activation != "silu":
        found.append(config.activation)
    if any(window is not None for window in config.windows) and not config.chunked:
        found.append("windows" if all(config.windows) else "windows in some layers")
    states = config.deltas or config.mambas
    rotated = [rope for layer, rope in enumerate(config.ropes) if not (states and states[layer])]
    if None in rotated and not config.learned_positions:
        found.append("layers without positions")
    if any(rope.rotary_dim < config.head_dim for rope in config.ropes if rope is not None):
        found.append("partial rotation")
    if isinstance(config, EncoderConfig):
        found += ["types of tokens"] * bool(config.num_token_types)
    if isinstance(config, Gemma4Config):
        found.append(_GEMMA4)
    return found or ["as Llama"]


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()  # ids of special tokens lie outside the tests' vocabulary
    PAGE.write_text(page())
