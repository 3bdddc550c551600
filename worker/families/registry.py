"""Which families there are, by the names that config.json gives under `architectures`, and how their files
are read. Needs no torch."""

from dataclasses import replace
from pathlib import Path

from pagewire.checkpoints.files import BARE_DECODERS, CLASSIFIERS, ENCODERS
from pagewire.errors import StartupError
from worker.config.decoder import DecoderFamily
from worker.config.ends import read_ends
from worker.config.hf_config import (
    HARMLESS,
    WHAT,
    Fields,
    ModelConfig,
    common_fields,
    read_config,
)
from worker.families.dense import (
    ERNIE,
    GLM,
    GLM4,
    LLAMA,
    MINISTRAL,
    MISTRAL,
    PHI3,
    QWEN2,
    QWEN3,
    SEED_OSS,
    SMOLLM3,
    STABLELM,
    STARCODER2,
)
from worker.families.encoders import BERT, DISTILBERT, MODERN_BERT, ROBERTA
from worker.families.experts.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, DOTS1, GLM4_MOE, GLM4_MOE_LITE, YOUTU
from worker.families.experts.granite import GRANITE, GRANITE_HYBRID, GRANITE_MOE
from worker.families.experts.llama4 import LLAMA4, LLAMA4_SEEING
from worker.families.experts.mixtral import GPT_OSS, MINIMAX_M2, MIXTRAL, OLMOE
from worker.families.experts.qwen_moe import QWEN2_MOE, QWEN3_MOE
from worker.families.learned_positions import GPT2, OPT
from worker.families.linear import (
    BAMBA,
    FALCON_H1,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_5_MOE_SEEING,
    QWEN3_5_SEEING,
    QWEN3_NEXT,
)
from worker.families.normed.gemma import GEMMA1, GEMMA2, GEMMA3, GEMMA4, GEMMA4_SEEING
from worker.families.normed.norms_after import COHERE2, EXAONE4, OLMO2, OLMO3

DECODERS: dict[str, DecoderFamily] = {
    "BambaForCausalLM": BAMBA,
    "BertModel": BERT,
    "Cohere2ForCausalLM": COHERE2,
    "DeepseekV2ForCausalLM": DEEPSEEK_V2,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
    "DistilBertModel": DISTILBERT,
    "Dots1ForCausalLM": DOTS1,
    "Exaone4ForCausalLM": EXAONE4,
    "Ernie4_5ForCausalLM": ERNIE,
    "FalconH1ForCausalLM": FALCON_H1,
    "Gemma2ForCausalLM": GEMMA2,
    "GemmaForCausalLM": GEMMA1,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma4ForCausalLM": GEMMA4,
    "Gemma4ForConditionalGeneration": GEMMA4_SEEING,
    "Glm4ForCausalLM": GLM4,
    "GlmForCausalLM": GLM,
    "Glm4MoeForCausalLM": GLM4_MOE,
    "Glm4MoeLiteForCausalLM": GLM4_MOE_LITE,
    "GPT2LMHeadModel": GPT2,
    "GptOssForCausalLM": GPT_OSS,
    "GraniteForCausalLM": GRANITE,
    "GraniteMoeForCausalLM": GRANITE_MOE,
    "GraniteMoeHybridForCausalLM": GRANITE_HYBRID,
    "Llama4ForCausalLM": LLAMA4,
    "Llama4ForConditionalGeneration": LLAMA4_SEEING,
    "LlamaForCausalLM": LLAMA,
    "MiniMaxM2ForCausalLM": MINIMAX_M2,
    "MinistralForCausalLM": MINISTRAL,
    "MistralForCausalLM": MISTRAL,
    "MixtralForCausalLM": MIXTRAL,
    "ModernBertModel": MODERN_BERT,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO3,
    "OlmoeForCausalLM": OLMOE,
    "OPTForCausalLM": OPT,
    "Phi3ForCausalLM": PHI3,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "Qwen3NextForCausalLM": QWEN3_NEXT,
    "Qwen3_5ForCausalLM": QWEN3_5,
    "Qwen3_5ForConditionalGeneration": QWEN3_5_SEEING,
    "Qwen3_5MoeForCausalLM": QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": QWEN3_5_MOE_SEEING,
    "RobertaModel": ROBERTA,
    "SeedOssForCausalLM": SEED_OSS,
    "SmolLM3ForCausalLM": SMOLLM3,
    "StableLmForCausalLM": STABLELM,
    "Starcoder2ForCausalLM": STARCODER2,
    "XLMRobertaModel": ROBERTA,
    "YoutuForCausalLM": YOUTU,
}
"""Families that worker.models.transformer builds, and those that have a model of their own in worker.models:
Gemma 4, OPT, and encoders."""

_SHARED = "tie_word_embeddings", "dtype", "torch_dtype", "eos_token_id"
"""Fields that stand for those of `text_config` where a config.json has it."""
_OF_IMAGES = (
    *("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    *("boi_token_index", "eoi_token_index", "image_token_index", "audio_config", "boi_token_id"),
    *("eoi_token_id", "boa_token_id", "eoa_token_index", "eoa_token_id", "audio_token_id"),
    *("text_config", "quantization_config"),
)
"""Fields beside it that change nothing for text."""


HEADLESS = {**BARE_DECODERS, **ENCODERS, **CLASSIFIERS}
"""Architectures of config.json that lack the output head, and those of their families."""


def is_known(architecture: str) -> bool:
    """True for an architecture of config.json that there is a family for."""
    return architecture in DECODERS or architecture in HEADLESS


def find_architecture(fields: Fields) -> tuple[str, bool]:
    """Returns the first known architecture of a config.json, and whether it is there without its head. Raises
    StartupError."""
    names = fields.texts("architectures")
    for name in filter(is_known, names):
        return HEADLESS.get(name, name), name in HEADLESS
    raise StartupError(
        WHAT,
        f"config.json: architecture {', '.join(names) or 'list is empty'} is not known",
        f"known are {', '.join(name.replace('ForCausalLM', '') for name in DECODERS)} (...ForCausalLM)",
    )


def read_model_config(folder: Path, overrides: str = "", tokenizer: Path | None = None) -> ModelConfig:
    """Reads the configuration of the model in a folder. overrides: as for read_config. tokenizer: folder of
    the tokenizer's files; None: the same one. Raises StartupError, also for a field that is not known and may
    change what the model computes."""
    fields = read_config(folder, overrides)
    architecture, is_bare = find_architecture(fields)
    classifies = any(name in CLASSIFIERS for name in fields.texts("architectures"))
    family = DECODERS[architecture]
    if family.nested:
        whole, fields = fields, fields.below("text_config", *_SHARED)
        whole.refuse_unknown({*HARMLESS, *_OF_IMAGES})
    generates = architecture not in ENCODERS.values()  # an encoder makes no tokens that could end
    ends = read_ends(folder, fields, tokenizer) if generates else {}
    for name, value in family.only.items():
        fields.expect(name, value)
    config = family.read(fields, common_fields(fields, architecture, ends))
    fields.refuse_unknown({*HARMLESS, *family.harmless})
    # The frontend refuses to generate with a decoder without a head: the embedding stands in its place.
    return replace(config, tied=True, classifies=classifies) if is_bare else config
