"""A model in a GGUF file computes what the same weights compute in safetensors."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from tests.gguf_files import write_gguf
from tests.worker.fakes import Driver, initialize
from tests.worker.weights.test_own_bits import weights_of
from worker.families.registry import read_model_config
from worker.load import load
from worker.platforms.cpu import CpuPlatform
from worker.weights.formats import gguf as formats
from worker.weights.formats.gguf import GGUFTensors
from worker.weights.open import open_checkpoint

PROMPT = [5, 100, 33, 210, 7, 8]
SHAPE = {"hidden_size": 64, "intermediate_size": 96}


def outcome(path: Path) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens of one prompt, and their logits."""
    driver = Driver(path, dtype="float32")
    sequence = driver.add(PROMPT, 12)[0]
    driver.run()
    return sequence.output, torch.stack(sequence.logits)


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "tie_word_embeddings": True, "head_dim": 20}),
        ("qwen2", {}),
        ("qwen3", {"tie_word_embeddings": True}),
        ("qwen3_moe", {}),
    ],
    ids=str,
)
def test_the_same_logits_as_from_safetensors(
    family: str, overrides: dict[str, object], checkpoint: Callable[..., Path], tmp_path: Path
):
    folder = checkpoint(family, **overrides)
    expected = outcome(folder)
    ours = outcome(write_gguf(folder, tmp_path / "model.gguf"))
    assert ours[0] == expected[0]
    assert torch.equal(ours[1], expected[1])


def test_all_ends_that_a_file_names(checkpoint: Callable[..., Path], tmp_path: Path):
    """By id, and by the text of a control token; an ordinary token of such a text is none."""
    folder = Path(shutil.copytree(checkpoint("llama"), tmp_path / "llama"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    pad = tokenizer["added_tokens"][0]
    assert pad["id"] == 0
    for text, new in ((pad["content"], "<|im_end|>"), ("x", "<|eot_id|>")):
        tokenizer["model"]["vocab"][new] = tokenizer["model"]["vocab"].pop(text)
    pad["content"] = "<|im_end|>"
    tokenizer["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    path = write_gguf(folder, tmp_path / "model.gguf", tokenizer__ggml__eot_token_id=7)
    assert read_model_config(path).eos_token_ids == (0, 2, 7)


def test_scaled_frequencies_as_llama3_computes_them(checkpoint: Callable[..., Path], tmp_path: Path):
    """A file has divisors of the frequencies in place of the formula's parameters."""
    parameters = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    folder = checkpoint("llama", rope_parameters=parameters)
    frequencies = 10000.0 ** -(np.arange(0, 12, 2) / 12)
    turns = 64 * frequencies / (2 * np.pi)
    kept = np.clip((turns - 1) / 3, 0, 1)
    path = write_gguf(folder, tmp_path / "model.gguf")
    scaled = tmp_path / "scaled.gguf"
    add_tensor(path, scaled, "rope_freqs.weight", (1 / (kept + (1 - kept) / 8)).astype(np.float32))
    assert outcome(scaled)[0] == outcome(folder)[0]
    assert not torch.allclose(outcome(path)[1], outcome(scaled)[1])


def test_a_factor_without_a_kind_is_linear(checkpoint: Callable[..., Path], tmp_path: Path):
    """A factor of cos and sin that is 1 changes nothing."""
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    expected = outcome(checkpoint("llama", rope_parameters=linear))
    metadata = {"llama__rope__scaling__factor": 4.0, "llama__rope__scaling__attn_factor": 1.0}
    path = write_gguf(checkpoint("llama"), tmp_path / "model.gguf", **metadata)
    assert torch.equal(outcome(path)[1], expected[1])
    scaled = tmp_path / "scaled.gguf"
    add_tensor(path, scaled, "rope_freqs.weight", np.ones(6, np.float32))
    with pytest.raises(StartupError, match=r"rope_freqs\.weight scale the same frequencies"):
        load(initialize(scaled), CpuPlatform(WorkerConfig(threads=1)))


def add_tensor(source: Path, target: Path, name: str, values: np.ndarray) -> None:
    """Copies a file with one more tensor."""
    copy(source, target, more={name: values})


def copy(
    source: Path,
    target: Path,
    values_of: Callable[[gguf.ReaderTensor], np.ndarray] | None = None,
    more: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Copies a file. values_of: what tensors become in float32; None: as they are. more: other tensors."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        if values_of is None:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        else:
            writer.add_tensor(tensor.name, values_of(tensor))
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


QUANTIZED = {"token_embd": "Q8_0", "attn_q": "Q4_1", "attn_k": "Q5_0", "attn_v": "Q5_1", "ffn_up": "Q4_0"}


def test_parts_of_packed_tensors(checkpoint: Callable[..., Path], tmp_path: Path):
    """Any rows and columns are those of the whole, and the whole is what the gguf package makes of it."""
    folder = checkpoint("qwen2", **SHAPE)
    path = write_gguf(folder, tmp_path / "model.gguf", QUANTIZED)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with open_checkpoint(path) as source:
        for name, tensor in (
            ("model.embed_tokens.weight", theirs["token_embd.weight"]),
            ("model.layers.1.self_attn.k_proj.weight", theirs["blk.1.attn_k.weight"]),
            ("model.layers.2.mlp.up_proj.weight", theirs["blk.2.ffn_up.weight"]),
        ):
            whole = source.read(name, ())
            assert np.array_equal(whole.numpy(), gguf.dequantize(tensor.data, tensor.tensor_type))
            assert torch.equal(source.read(name, (slice(3, 17),)), whole[3:17])
            assert torch.equal(source.read(name, (slice(5, 6), slice(40, 60))), whole[5:6, 40:60])


ROWS_OF_256 = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256}
MATRICES = (
    "attn_q",
    "attn_k",
    "attn_v",
    "ffn_gate",
    "ffn_up",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
)


@pytest.mark.parametrize("kind", ["Q2_K", "IQ4_XS", "MXFP4"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_model_in_a_type_that_the_gguf_package_unpacks(
    family: str, kind: str, checkpoint: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Tokens and logits of a file with the same values as they are; experts, too."""
    path = write_gguf(
        checkpoint(family, **ROWS_OF_256), tmp_path / "model.gguf", dict.fromkeys(MATRICES, kind)
    )
    plain = tmp_path / "plain.gguf"
    copy(path, plain, lambda tensor: gguf.dequantize(tensor.data, tensor.tensor_type))
    ours, expected = outcome(path), outcome(plain)
    assert ours[0] == expected[0]
    assert torch.equal(ours[1], expected[1])
    (line,) = [record.getMessage() for record in caplog.records if "unpacked" in record.getMessage()]
    assert f"weights in {kind} are unpacked to float32" in line and "of memory" in line


def test_a_type_whose_package_is_missing(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = checkpoint("llama", **ROWS_OF_256)
    path = write_gguf(folder, tmp_path / "model.gguf", {"ffn_up": "IQ4_XS"})
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    with pytest.raises(
        StartupError, match=r"tensor blk\.0\.ffn_up\.weight is IQ4_XS, and gguf, which unpacks it"
    ) as caught:
        GGUFTensors(path)
    assert "pip install" in caught.value.todo and "gguf" in caught.value.todo
    GGUFTensors(write_gguf(folder, tmp_path / "other.gguf", {"ffn_up": "Q8_0"}))


def test_experts_that_are_no_matrices(checkpoint: Callable[..., Path], tmp_path: Path):
    source = write_gguf(checkpoint("llama"), tmp_path / "model.gguf")
    path = tmp_path / "more.gguf"
    add_tensor(source, path, "blk.0.ffn_up_exps.weight", np.zeros((5000, 1, 4), np.float32))
    with pytest.raises(StartupError, match=r"ffn_up_exps\.weight has shape \[5000, 1, 4\]"):
        GGUFTensors(path)


def test_parts_of_queries_that_are_ordered_in_pairs(checkpoint: Callable[..., Path], tmp_path: Path):
    path = write_gguf(checkpoint("llama", **SHAPE), tmp_path / "model.gguf", QUANTIZED)
    with open_checkpoint(path) as source:
        name = "model.layers.0.self_attn.q_proj.weight"
        assert torch.equal(source.read(name, (slice(7, 30),)), source.read(name, ())[7:30])


def test_packed_weights_are_computed_with_in_16_bits_and_said_to_be(
    checkpoint: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = write_gguf(checkpoint("llama", **SHAPE), tmp_path / "model.gguf", QUANTIZED)
    with caplog.at_level("WARNING"):
        ready = load(initialize(path), CpuPlatform(WorkerConfig(threads=1)))[1]
    assert ready.model.dtype in ("bfloat16", "float32")
    (line,) = [record.getMessage() for record in caplog.records if "unpacked" in record.getMessage()]
    assert "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0" in line


@pytest.mark.cpu_kernels
def test_q4_0_keeps_its_integers(
    checkpoint: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The same values as when they are unpacked, rows in the order of the model; a matrix of which a part is
    of another type is unpacked, and a warning says which."""
    types = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down"), "Q4_0")
    path = write_gguf(checkpoint("llama", **SHAPE), tmp_path / "model.gguf", types | {"ffn_up": "Q4_1"})
    driver = Driver(path, dtype="bfloat16")
    assert driver.ready.model.quantization == "Q4_0-int4"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "blocks.0.mlp.gate_up (and 2 more): no kernel computes with Q4_1" in warning
    weights = weights_of(driver)
    assert len(weights) == 9
    with open_checkpoint(path) as source:
        parts = [source.read(f"model.layers.1.self_attn.{part}_proj.weight", ()) for part in "qkv"]
        assert torch.equal(weights["blocks.1.attention.qkv"].values(), torch.cat(parts))
        assert torch.equal(
            weights["blocks.1.mlp.down"].values(), source.read("model.layers.1.mlp.down_proj.weight", ())
        )


@pytest.mark.cpu_kernels
def test_q4_0_of_experts_keeps_its_integers(checkpoint: Callable[..., Path], tmp_path: Path):
    folder = checkpoint("qwen3_moe", **ROWS_OF_256)
    driver = Driver(write_gguf(folder, tmp_path / "model.gguf", dict.fromkeys(MATRICES, "Q4_0")))
    assert driver.ready.model.quantization == "Q4_0-int4"
    driver.add(PROMPT, 4)
    driver.run()


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"llama__attention__clamp_kqv": 8.0}, "llama.attention.clamp_kqv"),
        ({"llama__expert_count": 8}, "llama.expert_count"),
        ({"llama__rope__scaling__attn_factor": 0.5}, "llama.rope.scaling.attn_factor is 0.5"),
        ({"llama__rope__dimension_count": 6}, "rope.dimension_count is 6, but the head size is 16"),
        ({"split__count": 3}, "one of several parts"),
    ],
    ids=str,
)
def test_metadata_that_would_change_results(
    metadata: dict[str, float], why: str, checkpoint: Callable[..., Path], tmp_path: Path
):
    path = write_gguf(checkpoint("llama", **SHAPE), tmp_path / "model.gguf", **metadata)
    with pytest.raises(StartupError) as caught:
        load(initialize(path), CpuPlatform(WorkerConfig(threads=1)))
    assert why in str(caught.value)


def test_a_family_that_is_not_known(checkpoint: Callable[..., Path], tmp_path: Path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "rwkv7")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(StartupError, match="'rwkv7' is not known"):
        load(initialize(path), CpuPlatform(WorkerConfig(threads=1)))
