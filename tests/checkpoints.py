"""Tiny checkpoints of every family, made by transformers: what the worker must read and agree with.

    make_checkpoint("llama", folder)                             # seeded random weights, float32
    make_checkpoint("mistral", folder, sliding_window=8)         # any field of the family's config

The tokenizer is byte-level BPE: one token per byte, a few merges, three special tokens; its
vocabulary is exactly the model's. Greedy continuations of random weights soon repeat themselves, so
that the weights are larger than a trained model's: logits then differ clearly between tokens.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCAB_SIZE = 320
SPECIAL_TOKENS = ["<|pad|>", "<|begin|>", "<|end|>"]
PAD_ID, BOS_ID, EOS_ID = range(3)
INITIALIZER_RANGE = 0.25

_SHAPE = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
_GATED = _SHAPE | {"num_key_value_heads": 2, "intermediate_size": 80}
_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}
_RANDOM = _GATED | {"initializer_range": INITIALIZER_RANGE}
_HEADS_OF_16 = {"head_dim": 16, "query_pre_attn_scalar": 20}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
_LATENTS = {
    "num_key_value_heads": 4,
    "q_lora_rank": 28,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "mscale": 1.4,
        "mscale_all_dim": 0.7,
    },
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "truncate": False,
}
_FEW_EXPERTS = {"moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 3}
_GROUPED = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
}
_DELTA = {
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
}
_DELTA_EXPERTS = _DELTA | _FEW_EXPERTS | {"shared_expert_intermediate_size": 56}
_MAMBA = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 10, "mamba_d_head": 24}
MULTIPLIERS = {
    **{"embedding_multiplier": 3.0, "lm_head_multiplier": 0.6, "key_multiplier": 0.4},
    **{"attention_in_multiplier": 1.3, "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.25},
    **{
        "ssm_out_multiplier": 0.7,
        "mlp_multipliers": [0.88, 0.6],
        "ssm_multipliers": [0.4, 1.2, 0.3, 0.5, 1.4],
    },
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _RANDOM),
    "mistral": ("Mistral", _RANDOM | {"sliding_window": None}),
    "qwen2": ("Qwen2", _RANDOM),
    "qwen3": ("Qwen3", _RANDOM | {"head_dim": 16}),
    "ministral": ("Ministral", _RANDOM | {"head_dim": 12, "sliding_window": 9}),
    "phi3": ("Phi3", _RANDOM | {"original_max_position_embeddings": 256}),
    "smollm3": ("SmolLM3", _RANDOM | {"no_rope_layers": [1, 0, 1]}),
    "granite": (
        "Granite",
        _RANDOM
        | {"attention_multiplier": 0.2, "embedding_multiplier": 3.0}
        | {"residual_multiplier": 0.22, "logits_scaling": 0.5},
    ),
    "seed_oss": ("SeedOss", _RANDOM | {"head_dim": 16}),
    "starcoder2": ("Starcoder2", _RANDOM),
    "stablelm": ("StableLm", _RANDOM | {"head_dim": 16, "hidden_size": 64}),
    "gemma": ("Gemma", _RANDOM | {"head_dim": 16}),
    "glm": ("Glm", _RANDOM | {"head_dim": 16}),
    "ernie": ("Ernie4_5", _RANDOM | {"head_dim": 16}),
    "gemma2": ("Gemma2", _RANDOM | _HEADS_OF_16 | {"sliding_window": 9}),
    "gemma3": ("Gemma3", _RANDOM | _HEADS_OF_16 | {"sliding_window": 9, "layer_types": _ALTERNATING}),
    "gemma4": (
        "Gemma4",
        _RANDOM
        | {"num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 24, "sliding_window": 9}
        | {"layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 2}
        | {"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": VOCAB_SIZE},
    ),
    "glm4": ("Glm4", _RANDOM | {"head_dim": 16}),
    "olmo2": ("Olmo2", _RANDOM),
    "olmo3": ("Olmo3", _RANDOM | {"sliding_window": 9, "layer_types": _ALTERNATING}),
    "cohere2": ("Cohere2", _RANDOM | {"sliding_window": 9, "layer_types": _ALTERNATING, "logit_scale": 0.3}),
    "exaone4": ("Exaone4", _RANDOM | {"sliding_window": 9, "layer_types": _ALTERNATING}),
    "youtu": ("Youtu", _RANDOM | _LATENTS),
    "mixtral": ("Mixtral", _RANDOM | {"num_local_experts": 5}),
    "qwen2_moe": ("Qwen2Moe", _RANDOM | _FEW_EXPERTS | {"shared_expert_intermediate_size": 56}),
    "qwen3_moe": ("Qwen3Moe", _RANDOM | _FEW_EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
    "qwen3_next": ("Qwen3Next", _RANDOM | _DELTA_EXPERTS),
    "qwen3_5": ("Qwen3_5", _RANDOM | _DELTA),
    "qwen3_5_moe": ("Qwen3_5Moe", _RANDOM | _DELTA_EXPERTS),
    "olmoe": ("Olmoe", _RANDOM | {"num_experts": 7, "num_experts_per_tok": 2}),
    "granitemoe": (
        "GraniteMoe",
        _RANDOM
        | {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "num_local_experts": 5}
        | {"residual_multiplier": 0.22, "logits_scaling": 0.5},
    ),
    "granite_hybrid": (
        "GraniteMoeHybrid",
        _RANDOM
        | _MAMBA
        | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "num_local_experts": 5}
        | {"residual_multiplier": 0.22, "logits_scaling": 0.5, "shared_intermediate_size": 56},
    ),
    "falcon_h1": ("FalconH1", _RANDOM | _MAMBA | MULTIPLIERS | {"mamba_d_ssm": 96}),
    "bamba": ("Bamba", _RANDOM | _MAMBA | {"attn_layer_indices": [1]}),
    "glm4_moe": ("Glm4Moe", _RANDOM | _GROUPED | {"head_dim": 16}),
    "dots1": ("Dots1", _RANDOM | _GROUPED | {"head_dim": 16, "first_k_dense_replace": 1}),
    "minimax_m2": (
        "MiniMaxM2",
        _RANDOM | {"head_dim": 16, "rotary_dim": 8, "num_local_experts": 6, "num_experts_per_tok": 3},
    ),
    "gpt_oss": (
        "GptOss",
        _RANDOM
        | {"head_dim": 16, "sliding_window": 9, "num_local_experts": 5, "num_experts_per_tok": 3}
        | {"swiglu_limit": 0.4, "rope_parameters": _YARN},
    ),
    "llama4": (
        "Llama4",
        _RANDOM
        | {"head_dim": 16, "intermediate_size_mlp": 72, "num_local_experts": 5, "no_rope_layers": [1, 0, 1]}
        | {"attention_chunk_size": 9, "floor_scale": 8, "attn_scale": 0.5},
    ),
    "deepseek_v2": (
        "DeepseekV2",
        _RANDOM | _LATENTS | _GROUPED | {"norm_topk_prob": False, "topk_method": "group_limited_greedy"},
    ),
    "deepseek_v3": ("DeepseekV3", _RANDOM | _LATENTS | _GROUPED | {"first_k_dense_replace": 1}),
    "glm4_moe_lite": ("Glm4MoeLite", _RANDOM | _LATENTS | _GROUPED | {"n_group": 1, "topk_group": 1}),
    "opt": ("OPT", _SHAPE | {"init_std": INITIALIZER_RANGE, "ffn_dim": 80, "word_embed_proj_dim": 48}),
    "gpt2": (
        "GPT2",
        {"initializer_range": INITIALIZER_RANGE, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 256},
    ),
}
"""By family: the prefix of its classes in transformers, and the fields of its configuration."""
CONFIG_CLASSES = {
    "gemma3": "Gemma3TextConfig",
    "gemma4": "Gemma4TextConfig",
    "llama4": "Llama4TextConfig",
    "qwen3_5": "Qwen3_5TextConfig",
    "qwen3_5_moe": "Qwen3_5MoeTextConfig",
}
"""Where they are not called as the prefix says."""


_ENCODER = _COMMON | _SHAPE | {"intermediate_size": 80, "initializer_range": 0.1}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", _ENCODER),
    "roberta": ("Roberta", _ENCODER | {"type_vocab_size": 1, "pad_token_id": 1}),
    "xlm_roberta": ("XLMRoberta", _ENCODER | {"type_vocab_size": 1, "pad_token_id": 1}),
    "distilbert": (
        "DistilBert",
        {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 80, "max_position_embeddings": 256}
        | {"initializer_range": 0.1},
    ),
    "modern_bert": ("ModernBert", _ENCODER | {"local_attention": 16}),
    "embedding_gemma": (
        "Gemma3Text",
        {"use_bidirectional_attention": True, "sliding_window": 9, "layer_types": _ALTERNATING}
        | {"num_key_value_heads": 2, **_ENCODER, **_HEADS_OF_16},
    ),
}
"""Families whose tokens see those behind them: the prefix of their classes, and fields of their configs."""


def config_class(family: str) -> Any:
    """Returns the class of the family's configuration, of transformers."""
    if family in ENCODERS:
        return getattr(transformers, f"{ENCODERS[family][0]}Config")
    return getattr(transformers, CONFIG_CLASSES.get(family, f"{FAMILIES[family][0]}Config"))


def model_class(family: str) -> Any:
    """Returns the class of the family's reference, of transformers."""
    return getattr(transformers, architecture(family))


def architecture(family: str) -> str:
    """Returns the name of the family's model, as config.json has it."""
    if family in ENCODERS:
        return f"{ENCODERS[family][0]}Model"
    return FAMILIES[family][0] + ("LMHeadModel" if family == "gpt2" else "ForCausalLM")


def make_checkpoint(family: str, folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Writes config, weights, generation config and tokenizer into the folder, and returns it."""
    torch.manual_seed(seed)
    config = config_class(family)(**{**_COMMON, **(FAMILIES | ENCODERS)[family][1], **overrides})
    model = model_class(family)(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or name.endswith(
            "bias"
        ):  # transformers makes biases 0 and norms 1: say something instead
            torch.nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.1)
    for name, buffer in model.named_buffers():
        if name.endswith("correction_bias"):
            torch.nn.init.normal_(buffer, std=0.1)
        if name.endswith("layer_scalar"):
            torch.nn.init.uniform_(buffer, 0.5, 1.5)
    model.save_pretrained(folder)
    make_tokenizer(config.vocab_size).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", '
        '"eos_token": "<|end|>", "pad_token": "<|pad|>"}\n'
    )
    return folder


def make_tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level BPE with exactly that many tokens, at least 259."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Every two-letter word of this alphabet is a merge to be had.
    letters = "etaoinshrdlucmfwypvbgk"
    tokenizer.train_from_iterator((a + b for a in letters for b in letters), trainer)
    missing = vocab_size - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"<|extra {i}|>" for i in range(missing)])
    assert tokenizer.get_vocab_size() == vocab_size
    return tokenizer


def make_wordpiece(vocab_size: int) -> Tokenizer:
    """WordPiece of letters as BERT has it, [CLS] before a text and [SEP] behind it."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    named = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{each}" for each in letters)]
    tokens = named + [f"[unused{index}]" for index in range(vocab_size - len(named))]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=special
    )
    return tokenizer
