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
from worker.families import dense, encoders, learned_positions, linear
from worker.families.experts import deepseek, granite, llama4, mixtral, qwen_moe
from worker.families.hearing import DEFAULT_SIZES as SIZES_BESIDE_SOUNDS
from worker.families.hearing import HEARING, HearingFamily
from worker.families.image_processors import has_pixel_fields
from worker.families.normed import gemma, norms_after
from worker.families.seeing import DEFAULT_SIZES, SEEING, SeeingFamily

DECODERS: dict[str, DecoderFamily] = {
    "BambaForCausalLM": linear.BAMBA,
    "BertModel": encoders.BERT,
    "Cohere2ForCausalLM": norms_after.COHERE2,
    "DeepseekV2ForCausalLM": deepseek.DEEPSEEK_V2,
    "DeepseekV3ForCausalLM": deepseek.DEEPSEEK_V3,
    "DistilBertModel": encoders.DISTILBERT,
    "Dots1ForCausalLM": deepseek.DOTS1,
    "Exaone4ForCausalLM": norms_after.EXAONE4,
    "Ernie4_5ForCausalLM": dense.ERNIE,
    "FalconH1ForCausalLM": linear.FALCON_H1,
    "Gemma2ForCausalLM": gemma.GEMMA2,
    "GemmaForCausalLM": gemma.GEMMA1,
    "Gemma3ForCausalLM": gemma.GEMMA3,
    "Gemma4ForCausalLM": gemma.GEMMA4,
    "Gemma4ForConditionalGeneration": gemma.GEMMA4_SEEING,
    "Glm4ForCausalLM": dense.GLM4,
    "GlmForCausalLM": dense.GLM,
    "Glm4MoeForCausalLM": deepseek.GLM4_MOE,
    "Glm4MoeLiteForCausalLM": deepseek.GLM4_MOE_LITE,
    "GPT2LMHeadModel": learned_positions.GPT2,
    "GptOssForCausalLM": mixtral.GPT_OSS,
    "GraniteForCausalLM": granite.GRANITE,
    "GraniteMoeForCausalLM": granite.GRANITE_MOE,
    "GraniteMoeHybridForCausalLM": granite.GRANITE_HYBRID,
    "Llama4ForCausalLM": llama4.LLAMA4,
    "Llama4ForConditionalGeneration": llama4.LLAMA4_SEEING,
    "LlamaForCausalLM": dense.LLAMA,
    "MiniMaxM2ForCausalLM": mixtral.MINIMAX_M2,
    "MinistralForCausalLM": dense.MINISTRAL,
    "MistralForCausalLM": dense.MISTRAL,
    "MixtralForCausalLM": mixtral.MIXTRAL,
    "ModernBertModel": encoders.MODERN_BERT,
    "Olmo2ForCausalLM": norms_after.OLMO2,
    "Olmo3ForCausalLM": norms_after.OLMO3,
    "OlmoeForCausalLM": mixtral.OLMOE,
    "OPTForCausalLM": learned_positions.OPT,
    "Phi3ForCausalLM": dense.PHI3,
    "Qwen2ForCausalLM": dense.QWEN2,
    "Qwen2MoeForCausalLM": qwen_moe.QWEN2_MOE,
    "Qwen3ForCausalLM": dense.QWEN3,
    "Qwen3MoeForCausalLM": qwen_moe.QWEN3_MOE,
    "Qwen3NextForCausalLM": linear.QWEN3_NEXT,
    "Qwen3_5ForCausalLM": linear.QWEN3_5,
    "Qwen3_5ForConditionalGeneration": linear.QWEN3_5_SEEING,
    "Qwen3_5MoeForCausalLM": linear.QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": linear.QWEN3_5_MOE_SEEING,
    "RobertaModel": encoders.ROBERTA,
    "SeedOssForCausalLM": dense.SEED_OSS,
    "SmolLM3ForCausalLM": dense.SMOLLM3,
    "StableLmForCausalLM": dense.STABLELM,
    "Starcoder2ForCausalLM": dense.STARCODER2,
    "XLMRobertaModel": encoders.ROBERTA,
    "YoutuForCausalLM": deepseek.YOUTU,
}
"""Families that worker.models.transformer builds, and those that have a model of their own in worker.models:
Gemma 4, OPT, and encoders."""

BESIDE: dict[str, SeeingFamily | HearingFamily] = {**SEEING, **HEARING}
"""Families of an encoder of images or of sounds, and a decoder."""
_SHARED = "tie_word_embeddings", "dtype", "torch_dtype", "eos_token_id"
"""Fields that stand for those of `text_config` where a config.json has it."""
_OF_IMAGES = (
    *("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    *("boi_token_index", "eoi_token_index", "image_token_index", "audio_config", "boi_token_id"),
    *("eoi_token_id", "boa_token_id", "eoa_token_index", "eoa_token_id", "audio_token_id"),
    *("text_config", "quantization_config", "vision_soft_tokens_per_image"),
)
"""Fields beside it that change nothing for text."""


HEADLESS = {**BARE_DECODERS, **ENCODERS, **CLASSIFIERS}
"""Architectures of config.json that lack the output head, and those of their families."""


_SEEING = "ForConditionalGeneration"
"""End of the names of families that see images or hear sounds."""


def is_known(architecture: str) -> bool:
    """True for an architecture of config.json that there is a family for."""
    return any(architecture in names for names in (DECODERS, BESIDE, HEADLESS))


def find_architecture(fields: Fields) -> tuple[str, bool]:
    """Returns the first known architecture of a config.json, and whether it is there without its head. Raises
    StartupError."""
    names = fields.texts("architectures")
    for name in filter(is_known, names):
        return HEADLESS.get(name, name), name in HEADLESS
    seeing = (name.removesuffix(_SEEING) for name in BESIDE)
    others = (name.replace("ForCausalLM", "") for name in DECODERS if name not in BESIDE)
    raise StartupError(
        WHAT,
        f"config.json: architecture {', '.join(names) or 'list is empty'} is not known",
        f"known are {', '.join(seeing)} (...{_SEEING}), {', '.join(others)} (...ForCausalLM)",
    )


def read_model_config(
    folder: Path, overrides: str = "", tokenizer: Path | None = None, stages: int = 1
) -> ModelConfig:
    """Reads the configuration of the model in a folder. overrides: as for read_config. tokenizer: folder of
    the tokenizer's files; None: the same one. stages: of the worker. Raises StartupError, also for a field
    that is not known and may change what the model computes.

    The text alone is served from files that do not say what pixels become, and, of families that were so
    before their encoders were known, over several stages."""
    fields = read_config(folder, overrides)
    architecture, is_bare = find_architecture(fields)
    if architecture in BESIDE:
        encodes = architecture in HEARING or (fields.has("vision_config") and has_pixel_fields(folder))
        if architecture not in DECODERS or (encodes and stages == 1):
            return _read_beside(BESIDE[architecture], architecture, fields, folder, tokenizer, encodes)
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


def decoder_of(model_type: str) -> str | None:
    """Returns the architecture of the decoders that text_config.model_type names, where an encoder of images
    may stand beside them; None: there is none."""
    wanted = model_type.removesuffix("_text").replace("_", "")
    for name, family in DECODERS.items():
        short = name.removesuffix("ForCausalLM").removesuffix("LMHeadModel").replace("_", "").lower()
        if short == wanted and not family.nested and name not in (*ENCODERS.values(), *_WITHOUT_IMAGES):
            return name
    return None


_WITHOUT_IMAGES = "Gemma4ForCausalLM", "OPTForCausalLM"
"""Decoders that look up more by token id than embeddings, or whose embeddings have another width."""


_DEFAULT_SIZES = DEFAULT_SIZES | SIZES_BESIDE_SOUNDS


def _read_beside(
    family: SeeingFamily | HearingFamily,
    architecture: str,
    whole: Fields,
    folder: Path,
    tokenizer: Path | None,
    encodes: bool,
) -> ModelConfig:
    """Reads the configuration of a decoder beside an encoder of images or sounds; see read_model_config().
    encodes: the encoder is used."""
    is_flat = bool(family.decoders) and not whole.has("text_config")  # as the first files of Qwen are
    kind = (whole if is_flat else whole.object("text_config")).text("model_type", family.decoder)
    name, defaults = decoder_of(family.decoders.get(kind, kind)), _DEFAULT_SIZES.get(kind, {})
    if family.only_decoder:
        name = family.only_decoder if kind == family.decoder else None
    fields = whole if is_flat else whole.below("text_config", *_SHARED, defaults=defaults)
    if name is None or (family.decoders and kind not in family.decoders):
        raise fields.wrong("model_type", "no decoder of that type is known")
    decoder = DECODERS[name]
    ends = read_ends(folder, fields, tokenizer)
    for field, value in (*decoder.only.items(), *family.only.items()):
        fields.expect(field, value)
    config = family.adjust(decoder.read(fields, common_fields(fields, architecture, ends)))
    if (sections := family.sections) is not None:
        ropes = (None if rope is None else sections.read(fields, rope) for rope in config.ropes)
        config = replace(config, ropes=tuple(ropes))
    harmless = {*HARMLESS, *decoder.harmless, *family.only, *family.harmless_of_text}
    fields.refuse_unknown(harmless | ({*_OF_IMAGES, *family.harmless} if is_flat else set()))
    if not encodes:
        return replace(config, decoder=name)
    vision = family.read_vision(whole, folder, config)
    repeated = whole.object("text_config").names() if family.decoders and not is_flat else ()  # by some files
    whole.refuse_unknown({*HARMLESS, *_OF_IMAGES, *family.harmless, *repeated})
    seen = tuple(family.whole_images(fields, window) for window in config.windows)
    return replace(config, vision=vision, decoder=name, whole_images=seen)
