"""Writes the models of the comparison: real shapes in bfloat16, weights drawn at random.

    python -m benchmarks.versus.models /data/models            # makes /data/models/M1 to M5
    python -m benchmarks.versus.models /data/models --only M3

Speed does not depend on what the weights say, so nothing has to be downloaded. The tokenizer is made up as
well, for peers that insist on one: byte pairs in order, one for every id, so that any id is a token. The
benchmarks send ids.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GenerationConfig,
    GptOssConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3MoeConfig,
)

from benchmarks.options import make_parser

END = "<|endoftext|>"
"""Its usual name: transformers gives a Qwen2 a tokenizer that adds it where it is missing."""
ROPE_THETA = 10_000.0
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
TIED = ENDS | {"tie_word_embeddings": True}
QWEN = TIED | {"rms_norm_eps": 1e-6}


def configs() -> dict[str, PretrainedConfig]:
    """By name: M1, a Llama of 135 million parameters, M2, the shape of Qwen2.5-0.5B, M3, a Qwen3-MoE of 1.7
    billion parameters, with 8 of 64 experts for each token, M4, a DeepSeek-V3 of 300 million whose layers are
    all dense, with latents of 512 + 64 values, and M5, a gpt-oss of 1.3 billion, with 4 of 32 experts in
    MXFP4."""
    return {
        "M1": LlamaConfig(
            vocab_size=49_152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            **TIED,
        ),
        "M2": Qwen2Config(
            vocab_size=151_936,
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            max_position_embeddings=32_768,
            **QWEN,
        ),
        "M3": Qwen3MoeConfig(
            vocab_size=32_768,
            hidden_size=1024,
            moe_intermediate_size=512,
            intermediate_size=4096,
            num_experts=64,
            num_experts_per_tok=8,
            norm_topk_prob=True,
            num_hidden_layers=16,
            num_attention_heads=16,
            num_key_value_heads=4,
            head_dim=64,
            max_position_embeddings=32_768,
            **QWEN,
        ),
        "M4": DeepseekV3Config(
            vocab_size=32_768,
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=16,
            first_k_dense_replace=16,
            num_attention_heads=16,
            num_key_value_heads=16,
            q_lora_rank=768,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            max_position_embeddings=4096,
            **QWEN,
        ),
        "M5": GptOssConfig(
            vocab_size=32_768,
            hidden_size=1024,
            intermediate_size=1024,
            num_local_experts=32,
            num_experts_per_tok=4,
            num_hidden_layers=12,
            num_attention_heads=16,
            num_key_value_heads=4,
            head_dim=64,
            sliding_window=128,
            max_position_embeddings=131_072,
            tie_word_embeddings=False,
            **ENDS,
        ),
    }


def tokenizer(vocab_size: int) -> Tokenizer:
    """The end, all bytes, then merges: pairs of ASCII's letters and signs, and pairs with one behind them. A
    server holds back a token that may be half of a character: of these none is."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([END, *letters])}
    merges: list[tuple[str, str]] = []
    heads = plain = [letter for letter in letters if letter.isascii()]
    while len(vocab) < vocab_size:
        room = vocab_size - len(vocab)
        pairs = [(head, letter) for head in heads[: room // len(plain) + 1] for letter in plain][:room]
        merges += pairs
        heads = [head + letter for head, letter in pairs]
        vocab.update({head: len(vocab) + index for index, head in enumerate(heads)})
    made = Tokenizer(BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END])
    return made


def write_tokenizer(folder: Path, vocab_size: int, context: int) -> None:
    """tokenizer.json and its config, whose class name is one that all versions of transformers know."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(vocab_size), bos_token=END, eos_token=END, pad_token=END
    )
    wrapped.save_pretrained(folder)
    amend(
        folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", model_max_length=context
    )


def write_model(folder: Path, config: PretrainedConfig) -> int:
    """Config, weights and tokenizer; the number of parameters."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=0, pad_token_id=0)
    model.save_pretrained(folder)
    if config.model_type == "gpt_oss":
        pack_experts(folder)
    else:  # where older readers look for it
        amend(folder / "config.json", rope_theta=ROPE_THETA)
    amend(folder / "config.json", torch_dtype="bfloat16")
    write_tokenizer(folder, config.vocab_size, config.max_position_embeddings)
    return sum(parameter.numel() for parameter in model.parameters())


def pack_experts(folder: Path) -> None:
    """Puts floats of 4 bits in the place of a gpt-oss's experts, drawn at random, about as large as those."""
    path, made = folder / "model.safetensors", torch.Generator().manual_seed(0)
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, inputs, outputs = tensors.pop(name).shape
        shape = count, outputs, inputs // 32
        blocks = torch.randint(256, (*shape, 16), generator=made, dtype=torch.uint8)
        scales = torch.randint(119, 122, shape, generator=made, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, path, {"format": "pt"})
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    method = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    amend(folder / "config.json", quantization_config=method)


def amend(path: Path, **values: object) -> None:
    """Sets keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=1) + "\n")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, help="outside a repository: 6.2 GB")
    parser.add_argument("--only", choices=sorted(configs()), help="one of them")
    options = parser.parse_args()
    for name, config in configs().items():
        if options.only in (None, name):
            parameters = write_model(options.folder / name, config)
            print(f"{options.folder / name}: {parameters / 1e6:.1f} million parameters")


if __name__ == "__main__":
    main()
