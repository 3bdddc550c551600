"""Configurations: both generations of spellings, and every kind of nonsense by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels.ops.layers.activation import ACTIVATIONS
from pagewire.checkpoints.files import BARE_DECODERS
from pagewire.errors import StartupError
from tests.checkpoints import FAMILIES as CHECKPOINTS
from worker.config.decoder import DecoderConfig
from worker.config.ends import read_ends
from worker.config.hf_config import ACTIVATIONS as CHECKPOINT_ACTIVATIONS
from worker.config.hf_config import ModelConfig, read_config
from worker.config.rope import RopeConfig, scaled_max_position
from worker.families.registry import DECODERS, read_model_config
from worker.families.seeing import SEEING
from worker.models.registry import FAMILIES

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
OPT = {
    "architectures": ["OPTForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
QWEN2, PHI3, SMOLLM3, GEMMA2, GEMMA3, OLMO3 = (
    LLAMA | {"architectures": [f"{name}ForCausalLM"]}
    for name in ("Qwen2", "Phi3", "SmolLM3", "Gemma2", "Gemma3", "Olmo3")
)
YOUTU = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "head_dim")} | {
    "architectures": ["YoutuForCausalLM"],
    "qk_rope_head_dim": 8,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 320,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
}


def read(folder: Path, fields: dict[str, Any]) -> ModelConfig:
    """As loading does."""
    (folder / "config.json").write_text(json.dumps(fields))
    return read_model_config(folder)


def read_llama(folder: Path, **changes: Any) -> DecoderConfig:
    config = read(folder, LLAMA | changes)
    assert isinstance(config, DecoderConfig)
    return config


def rope_of(config: DecoderConfig) -> RopeConfig:
    """That of all layers."""
    (rope,) = set(config.ropes)
    assert rope is not None
    return rope


def test_old_and_new_spellings_mean_the_same(tmp_path: Path):
    rope = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    old = read_llama(
        tmp_path, torch_dtype="bfloat16", rope_theta=5e5, rope_scaling={"rope_type": "llama3", **rope}
    )
    older = read_llama(
        tmp_path, torch_dtype="torch.bfloat16", rope_theta=5e5, rope_scaling={"type": "llama3", **rope}
    )
    new = read_llama(
        tmp_path, dtype="bfloat16", rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **rope}
    )
    assert old == older == new
    assert new.dtype == "bfloat16"
    assert rope_of(new).theta == 5e5


def test_null_is_absent(tmp_path: Path):
    plain = read_llama(tmp_path)
    assert plain == read_llama(tmp_path, rope_scaling=None, head_dim=None, eos_token_id=None, dtype=None)
    assert plain.head_dim == 12
    assert plain.dtype is None
    assert rope_of(plain) == RopeConfig(theta=10000.0, kind="default", rotary_dim=12)


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        (None, 64),
        ({"rope_type": "linear", "factor": 2.5}, 160),
        ({"rope_type": "dynamic", "factor": 2.0}, 128),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}, 64),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 64),
    ],
)
def test_context_length_with_scaling(tmp_path: Path, rope: dict[str, Any] | None, length: int):
    config = read_llama(tmp_path, rope_scaling=rope)
    assert config.max_position == length
    assert scaled_max_position(rope_of(config), 64) == length


def test_only_dynamic_scaling_depends_on_the_prompt(tmp_path: Path):
    """The core must not share blocks between prompts of such a model."""
    assert read_llama(tmp_path, rope_scaling={"type": "dynamic", "factor": 2.0}).depends_on_prompt_len
    assert not read_llama(tmp_path, rope_scaling={"type": "linear", "factor": 2.0}).depends_on_prompt_len


def test_longrope(tmp_path: Path):
    """By the ratio of both context lengths where the file has no factor."""
    factors = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    for kind in ({"type": "longrope"}, {"type": "su"}, {"rope_type": "longrope"}):
        fields = {"rope_scaling": kind | factors, "original_max_position_embeddings": 16}
        config = read(tmp_path, PHI3 | fields)
        assert isinstance(config, DecoderConfig) and config.depends_on_prompt_len
        assert config.max_position == 64 and rope_of(config).factor == 4
        assert rope_of(config).attention_factor == pytest.approx(1.5**0.5)


def test_longrope_without_the_length_that_it_was_trained_for(tmp_path: Path):
    """4096, as Phi-3's first files mean it."""
    factors = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    config = read(tmp_path, PHI3 | {"rope_scaling": factors, "max_position_embeddings": 8192})
    assert isinstance(config, DecoderConfig)
    assert (rope_of(config).original_max_position, rope_of(config).factor) == (4096, 2)


def test_a_part_of_each_head_that_is_said_twice(tmp_path: Path):
    """As transformers writes an older file of Phi-4-mini again."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    phi3 = PHI3 | {"rope_parameters": rope}
    config = read(tmp_path, phi3 | {"partial_rotary_factor": 0.5})
    assert isinstance(config, DecoderConfig) and rope_of(config).rotary_dim == 6
    with pytest.raises(StartupError, match=r"is 1\.0, but the rotary parameters say 0\.5"):
        read(tmp_path, phi3 | {"partial_rotary_factor": 1.0})


def test_older_files_of_gemma3(tmp_path: Path):
    """Angles of the layers with a window have their own base, and no scaling."""
    config = read(
        tmp_path,
        LLAMA
        | {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 9, "sliding_window_pattern": 2}
        | {"head_dim": 12, "rope_local_base_freq": 100.0}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    )
    assert isinstance(config, DecoderConfig) and config.windows == (9, None)
    local, full = config.ropes
    assert local is not None and full is not None
    assert (local.theta, local.kind, full.theta, full.kind) == (100.0, "default", 1e6, "linear")
    assert config.max_position == 64 and config.score_cap is None


def test_yarn_attention_factor(tmp_path: Path):
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert rope_of(read_llama(tmp_path, rope_scaling=yarn)).attention_factor == pytest.approx(
        1.1386, abs=1e-4
    )
    given = read_llama(tmp_path, rope_scaling={**yarn, "attention_factor": 1.5})
    assert rope_of(given).attention_factor == 1.5
    equal = read_llama(tmp_path, rope_scaling={**yarn, "mscale": 1.0, "mscale_all_dim": 1.0})
    assert rope_of(equal).attention_factor == 1.0


def test_windows(tmp_path: Path):
    """A window that Mistral leaves out is 4096, null is none; Qwen needs use_sliding_window."""
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"]}
    assert read(tmp_path, mistral).windows == (4096, 4096)
    assert read(tmp_path, mistral | {"sliding_window": None}).windows == (None, None)
    assert read(tmp_path, mistral | {"sliding_window": 9}).windows == (9, 9)
    for name in ("Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        qwen = LLAMA | {"architectures": [name], "sliding_window": 9}
        assert read(tmp_path, qwen).windows == (None, None)
        used = qwen | {"use_sliding_window": True}
        assert read(tmp_path, used).windows == (None, None)  # the default: from layer 28 on
        assert read(tmp_path, used | {"max_window_layers": 1}).windows == (None, 9)
        kinds = ["sliding_attention", "full_attention"]
        assert read(tmp_path, used | {"layer_types": kinds}).windows == (9, None)
        assert read(tmp_path, used | {"sliding_window": None}).windows == (None, None)
        for unused in (0, -1, None):
            assert read(tmp_path, qwen | {"sliding_window": unused}).windows == (None, None)


def test_eos_of_both_files(tmp_path: Path):
    """United; ids outside the vocabulary are left out."""
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 2, 400]}')
    config = read_llama(tmp_path, eos_token_id=5)
    assert config.eos_token_ids == (2, 5, 9)
    assert config.eos_origins == ("generation_config.json", "config.json", "generation_config.json")
    (tmp_path / "generation_config.json").unlink()
    assert read_llama(tmp_path, eos_token_id=[5, 3]).eos_token_ids == (3, 5)
    assert read_llama(tmp_path).eos_token_ids == ()


def test_the_end_that_the_tokenizer_names(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """By its text, in any of its spellings and files; the log says which file names which."""

    def write(name: str, content: Any) -> None:
        (tmp_path / name).write_text(json.dumps(content))

    caplog.set_level("INFO")
    write("tokenizer.json", {"model": {"vocab": {"<a>": 3}}, "added_tokens": [{"content": "<b>", "id": 4}]})
    for named, ends in (
        ({"tokenizer_config.json": {"eos_token": "<b>"}}, (2, 4)),
        ({"tokenizer_config.json": {"eos_token": {"content": "<b>"}, "eot_token": "<a>"}}, (2, 3, 4)),
        ({"special_tokens_map.json": {"eos_token": "<a>"}, "tokenizer_config.json": {}}, (2, 3)),
        ({"tokenizer_config.json": {"eos_token": "<c>"}, "special_tokens_map.json": {}}, (2,)),
        (
            {
                "tokenizer_config.json": {
                    "eos_token": "<c>",
                    "added_tokens_decoder": {"7": {"content": "<c>"}},
                }
            },
            (2, 7),
        ),
        ({"added_tokens.json": {"<d>": 8}, "tokenizer_config.json": {"eos_token": "<d>"}}, (2, 8)),
        ({"tokenizer.json": {"model": {"vocab": [["<d>", 0]]}}, "added_tokens.json": {}}, (0, 2)),
        ({"tokenizer.json": "no object"}, (2,)),
    ):
        for name, content in named.items():
            write(name, content)
        config = read_llama(tmp_path, eos_token_id=2)
        assert config.eos_token_ids == ends and len(config.eos_origins) == len(ends)
        assert config.eos_origins[ends.index(2)] == "config.json"
    assert "answers end at the tokens 2 (config.json); 4 (tokenizer_config.json)" in caplog.text
    caplog.clear()
    assert read_llama(tmp_path).eos_token_ids == ()
    assert "no file of the checkpoint names a token that ends answers" in caplog.text


def test_the_first_known_architecture_counts(tmp_path: Path):
    assert (
        read_llama(tmp_path, architectures=["Unheard", "LlamaForCausalLM"]).architecture == "LlamaForCausalLM"
    )


@pytest.mark.parametrize("tied", [False, True])
def test_a_decoder_without_its_head(tmp_path: Path, tied: bool):
    """What generates is not there, so the embedding may stand in its place."""
    config = read_llama(tmp_path, architectures=["LlamaModel"], tie_word_embeddings=tied)
    assert config.architecture == "LlamaForCausalLM" and config.tied


def test_every_decoder_without_a_head_is_one_of_ours():
    assert set(BARE_DECODERS.values()) <= set(DECODERS)


def test_an_unknown_architecture_names_those_that_are_known(tmp_path: Path):
    with pytest.raises(StartupError, match="architecture MambaForCausalLM is not known") as raised:
        read(tmp_path, LLAMA | {"architectures": ["MambaForCausalLM"]})
    names = [name.removesuffix("ForCausalLM") for name in FAMILIES]
    names += [name.removesuffix("ForConditionalGeneration") for name in SEEING]
    assert all(name.removesuffix("ForConditionalGeneration") in raised.value.todo for name in names)
    assert raised.value.todo.endswith("(...ForCausalLM)"), "it is not cut off"


WITHOUT: Any = object()
BAD_FIELDS: list[tuple[dict[str, Any], str, Any, str]] = [
    (LLAMA, "architectures", WITHOUT, "config.json has no field architectures"),
    (LLAMA, "architectures", [], "list is empty"),
    (LLAMA, "architectures", "LlamaForCausalLM", "must be a list of strings"),
    (LLAMA, "hidden_size", WITHOUT, "config.json has no field hidden_size"),
    (LLAMA, "vocab_size", None, "config.json has no field vocab_size"),
    (LLAMA, "intermediate_size", WITHOUT, "config.json has no field intermediate_size"),
    (LLAMA, "num_hidden_layers", -1, "num_hidden_layers is -1, but must be an integer of at least 1"),
    (LLAMA, "num_hidden_layers", 1.5, "must be an integer"),
    (LLAMA, "num_hidden_layers", True, "must be an integer"),
    (LLAMA, "num_key_value_heads", 3, "num_key_value_heads is 3, but must divide"),
    (LLAMA, "num_attention_heads", 0, "num_attention_heads is 0"),
    (LLAMA, "num_attention_heads", 10, "num_attention_heads is 10, but must divide hidden_size"),
    (LLAMA, "head_dim", 7, "the head size is 7"),
    (LLAMA, "rms_norm_eps", -1e-6, "must be greater than 0"),
    (LLAMA, "rms_norm_eps", "small", "must be a number"),
    (LLAMA, "rope_theta", 0.5, "must be greater than 1"),
    (LLAMA, "tie_word_embeddings", "yes", "must be true or false"),
    (LLAMA, "hidden_act", "mish", 'hidden_act is "mish", but only these are known'),
    (LLAMA, "hidden_act", 3, "must be a string"),
    (LLAMA, "dtype", "int8", "only these are supported"),
    (LLAMA, "eos_token_id", "end", "must be a token id or a list"),
    (LLAMA, "quantization_config", {"quant_method": "exl3"}, "only these are known: awq"),
    (LLAMA, "quantization_config", {"bits": 4}, "has no field quant_method"),
    (LLAMA, "rope_scaling", [1], "must be an object"),
    (LLAMA, "rope_scaling", {"rope_type": "longrope"}, "rope_scaling has no field short_factor"),
    (LLAMA, "rope_scaling", {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}, "6 numbers"),
    (LLAMA, "rope_scaling", {"type": "ntk"}, 'type is "ntk"'),
    (
        LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        "rope_scaling",
        {"type": "yarn", "factor": 4.0},
        "rope_parameters is there, too: put its fields into that one",
    ),
    (
        LLAMA,
        "rope_scaling",
        {"mrope_section": [2, 2]},
        "mrope_section is [2, 2], but this field is not known",
    ),
    (LLAMA, "attn_logit_softcapping", 30.0, "attn_logit_softcapping is 30.0, but this field is not known"),
    (QWEN2, "use_mrope", True, "use_mrope is true, but nothing else is supported"),
    (GEMMA2, "use_bidirectional_attention", True, "nothing else is supported"),
    (PHI3, "partial_rotary_factor", 1.5, "partial_rotary_factor is 1.5, but must be at most 1"),
    (PHI3, "partial_rotary_factor", 0.25, "the head size is 12, of which 3 values are rotated"),
    (SMOLLM3, "no_rope_layers", [1], "must have a 0 or a 1 for each hidden layer"),
    (GEMMA2, "layer_types", ["full_attention"], "layer_types is"),
    (
        LLAMA
        | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}},
        "original_max_position_embeddings",
        32,
        "original_max_position_embeddings is 32, but the rotary parameters say 16",
    ),
    (LLAMA | {"rope_parameters": {"rope_theta": 9.0}}, "rope_theta", 5.0, "the rotary parameters say 9.0"),
    (GEMMA3, "rope_parameters", {"rope_theta": 9.0}, "rope_theta is 9.0, but this field is not known"),
    (OLMO3, "rope_parameters", {"rope_theta": 9.0}, "rope_theta is 9.0, but this field is not known"),
    (
        PHI3 | {"partial_rotary_factor": 0.17},
        "rope_scaling",
        {"rope_type": "dynamic", "factor": 2.0},
        "of each head 2 values are rotated",
    ),
    (LLAMA, "rope_scaling", {"factor": 2.0}, "factor is 2.0, but rope_type must say how it scales positions"),
    (LLAMA, "rope_scaling", {"type": "default", "factor": 4}, "rope_type must say how it scales positions"),
    (LLAMA, "rope_scaling", {"rope_type": "linear"}, "rope_scaling has no field factor"),
    (LLAMA, "rope_scaling", {"rope_type": "linear", "factor": 0.5}, "factor is 0.5"),
    (LLAMA, "rope_scaling", {"partial_rotary_factor": 0.5}, "only 1.0 is supported"),
    (LLAMA, "rope_scaling", {"rope_type": "llama3", "factor": 2.0}, "has no field low_freq_factor"),
    (
        LLAMA,
        "rope_scaling",
        {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4, "high_freq_factor": 3},
        "must be at least low_freq_factor",
    ),
    (YOUTU, "num_key_value_heads", 2, "num_key_value_heads is 2, but a latent has keys of all heads (4)"),
    (YOUTU, "head_dim", 12, "head_dim is 12, but 8 follows from qk_nope_head_dim and qk_rope_head_dim"),
    (YOUTU, "qk_rope_head_dim", 7, "the head size is 7"),
    (YOUTU, "q_lora_rank", 0, "q_lora_rank is 0, but must be an integer of at least 1"),
    (YOUTU, "mlp_bias", True, "mlp_bias is true, but nothing else is supported"),
    (OPT, "num_attention_heads", 5, "must divide hidden_size"),
    (OPT, "ffn_dim", WITHOUT, "config.json has no field ffn_dim"),
    (OPT, "activation_function", "mish", "only these are known"),
    (GPT2, "n_head", 5, "must divide n_embd"),
    (GPT2, "n_embd", WITHOUT, "config.json has no field n_embd"),
    (GPT2, "add_cross_attention", True, "cross-attention is not supported"),
]


@pytest.mark.parametrize(("base", "name", "value", "message"), BAD_FIELDS)
def test_bad_fields(tmp_path: Path, base: dict[str, Any], name: str, value: Any, message: str):
    fields = base | {name: value}
    if value is WITHOUT:
        del fields[name]
    with pytest.raises(StartupError) as raised:
        read(tmp_path, fields)
    assert message in raised.value.why


def test_bad_layer_types(tmp_path: Path):
    qwen = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
    for kinds in (["full_attention"], ["full_attention", "linear_attention"]):
        with pytest.raises(StartupError, match="layer_types"):
            read(tmp_path, qwen | {"layer_types": kinds})


def test_overrides_go_before_the_file(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    config = read_model_config(tmp_path, '{"max_position_embeddings": 99}')
    assert config == replace(read_model_config(tmp_path), max_position=99)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ('{"surprise": 1}', "config.json with --hf-overrides: surprise is 1, but this field is not known"),
        ('{"max_position_embeddings": "x"}', 'max_position_embeddings is "x", but must be an integer'),
        ('{"quantization_config": {}}', "quantization_config says how the weights are stored"),
        ("[]", "it is not a JSON object"),
    ],
)
def test_overrides_that_are_refused(tmp_path: Path, overrides: str, why: str):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(StartupError) as raised:
        read_model_config(tmp_path, overrides)
    assert why in raised.value.why


def test_a_gguf_file_has_nothing_to_override():
    with pytest.raises(StartupError, match="model.gguf has no config.json"):
        read_config(Path("model.gguf"), '{"a": 1}')


def test_ends_of_another_tokenizer(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": 2}))
    for folder, token, number in ((tmp_path, "<own>", 3), (tmp_path / "other", "<other>", 4)):
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
        (folder / "added_tokens.json").write_text(json.dumps({token: number}))
    assert read_model_config(tmp_path).eos_token_ids == (2, 3)
    assert read_model_config(tmp_path, "", tmp_path / "other").eos_token_ids == (2, 4)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b"[" * 100_000, b"[]", b'"text"'])
def test_files_that_are_not_what_they_should_be(tmp_path: Path, name: str, content: bytes):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StartupError, match=f"^cannot load the model's configuration: {name} is not"):
        read_ends(tmp_path, read_config(tmp_path))


def test_what_transformers_writes_is_read(tmp_path: Path, checkpoint: Callable[..., Path]):
    """Every family's saved configuration, with its defaults written out."""
    for family in CHECKPOINTS:
        fields = json.loads((checkpoint(family) / "config.json").read_text())
        config = read(tmp_path, fields)
        assert config.eos_token_ids == (2,)
        assert config.max_position == 256, family
        assert config.dtype == "float32"


def test_every_family_has_both_halves():
    """How its config.json is read (without torch), and how it is built."""
    assert DECODERS.keys() == FAMILIES.keys()
    assert set(CHECKPOINT_ACTIVATIONS) == set(ACTIVATIONS)
