"""Encoders compute what transformers computes, with the same bits alone and among others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM

from pagewire.checkpoints.heads import VOCABULARY, vocabulary_head
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_ALL,
    POOLING_TYPE_CLS,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MAX,
    POOLING_TYPE_MEAN,
    Pooling,
)
from tests.worker.fakes import Driver

KINDS = POOLING_TYPE_CLS, POOLING_TYPE_LAST, POOLING_TYPE_MAX, POOLING_TYPE_MEAN, POOLING_TYPE_ALL
PROMPTS = [
    [3 + (7 * row + 5 * place) % 300 for place in range(length)]
    for row, length in enumerate((1, 2, 9, 10, 31, 100))
]
FITTING: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}
"""Sizes that compiled kernels take."""
ANGLES = ("full_attention", 100.0), ("sliding_attention", 30.0)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "bert, relu, other eps, sizes of kernels": (
        "bert",
        {"hidden_act": "relu", "layer_norm_eps": 1e-3, "hidden_size": 64, "type_vocab_size": 1},
    ),
    "roberta": ("roberta", {}),
    "roberta, positions behind another padding token, sizes of kernels": (
        "roberta",
        {"pad_token_id": 4, "max_position_embeddings": 105, "hidden_size": 64},
    ),
    "xlm_roberta": ("xlm_roberta", {}),
    "distilbert": ("distilbert", {}),
    "distilbert, relu, sinusoidal positions, sizes of kernels": (
        "distilbert",
        {"activation": "relu", "sinusoidal_pos_embds": True, "dim": 64},
    ),
    "modern_bert": ("modern_bert", {}),
    "modern_bert, biases, other angles and windows, sizes of kernels": (
        "modern_bert",
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "hidden_size": 64}
        | {"local_attention": 7, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        | {
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in ANGLES}
        },
    ),
    "embedding_gemma": ("embedding_gemma", {}),
    "embedding_gemma, an even window, one KV head, sizes of kernels": (
        "embedding_gemma",
        {"sliding_window": 12, "num_key_value_heads": 1, **FITTING},
    ),
}


def vectors(driver: Driver, kind: int, prompts: list[list[int]] = PROMPTS) -> list[list[float]]:
    rows = [driver.add(prompt, 1, pooling=Pooling(type=kind))[0] for prompt in prompts]
    driver.run()
    return [row.vector for row in rows]


@pytest.mark.parametrize("variant", VARIANTS)
def test_vectors_are_those_of_transformers(checkpoint: Callable[..., Path], variant: str):
    family, fields = VARIANTS[variant]
    folder = checkpoint(family, **fields)
    driver = Driver(folder, record=False, dtype="float32", block_size=16)
    assert driver.ready.model.whole_prompts
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        states = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in PROMPTS]
    expected = {
        POOLING_TYPE_CLS: [each[0] for each in states],
        POOLING_TYPE_LAST: [each[-1] for each in states],
        POOLING_TYPE_MAX: [each.amax(0) for each in states],
        POOLING_TYPE_MEAN: [each.mean(0) for each in states],
        POOLING_TYPE_ALL: [each.flatten() for each in states],
    }
    for kind, wanted in expected.items():
        for found, vector in zip(vectors(driver, kind), wanted, strict=True):
            assert np.abs(np.array(found) - vector.numpy()).max() <= 1e-5 * float(vector.abs().max())


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_bits_alone_and_among_others(checkpoint: Callable[..., Path], variant: str, dtype: str):
    family, fields = VARIANTS[variant]
    driver = Driver(checkpoint(family, **fields), record=False, dtype=dtype, block_size=16)
    for kind in KINDS:
        alone = [vectors(driver, kind, [prompt])[0] for prompt in PROMPTS]
        assert vectors(driver, kind) == alone
        assert vectors(driver, kind, PROMPTS[::-1]) == alone[::-1]


@pytest.mark.parametrize("family", ["bert", "distilbert", "modern_bert", "roberta", "xlm_roberta"])
def test_what_predicts_masked_tokens_is_left_out(
    checkpoint: Callable[..., Path], tmp_path: Path, family: str
):
    """Such checkpoints have a prefix before the names, and more tensors."""
    folder = checkpoint(family)
    AutoModelForMaskedLM.from_pretrained(folder).save_pretrained(tmp_path)
    assert "ForMaskedLM" in (tmp_path / "config.json").read_text()
    found = [vectors(Driver(each, record=False, dtype="float32"), KINDS[0]) for each in (folder, tmp_path)]
    assert found[0] == found[1]


def test_old_names_of_norms(checkpoint: Callable[..., Path], tmp_path: Path):
    """As BERT's first checkpoints have them."""
    folder = checkpoint("bert")
    AutoModelForMaskedLM.from_pretrained(folder).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kinds = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {}
    for name, value in tensors.items():
        for new, before in kinds.items():
            name = name.replace(new, before)
        old[name] = value
    assert sum(name.endswith("gamma") for name in old) > 3
    save_file(old, tmp_path / "model.safetensors", {"format": "pt"})
    found = [vectors(Driver(each, record=False, dtype="float32"), KINDS[0]) for each in (folder, tmp_path)]
    assert found[0] == found[1]


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("bert", {"hidden_size": 64}),
        ("bert", {}),
        ("distilbert", {"dim": 64}),
        ("roberta", {"hidden_size": 64}),
        ("xlm_roberta", {"hidden_size": 64}),
        ("modern_bert", {"hidden_size": 64}),
        ("modern_bert", {"hidden_size": 64, "norm_bias": True, "classifier_bias": True}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_the_vocabulary(
    checkpoint: Callable[..., Path], tmp_path: Path, family: str, fields: dict[str, Any], dtype: str
):
    """Those of transformers' logits, with the same bits alone and among others."""
    torch.manual_seed(3)
    model = AutoModelForMaskedLM.from_pretrained(
        checkpoint(family, **fields), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    of_heads = "cls.", "lm_head.", "head.", "decoder.", "vocab_"  # the matrix is the embedding
    for name, parameter in model.named_parameters():
        if name.startswith(of_heads):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    driver = Driver(tmp_path, record=False, dtype=dtype, block_size=16)
    assert list(driver.ready.model.head_sizes) == [0, 0, model.config.vocab_size]
    pooling = Pooling(type=POOLING_TYPE_MAX, head=VOCABULARY)

    def weights(prompts: list[list[int]]) -> list[list[float]]:
        rows = [driver.add(prompt, 1, pooling=pooling)[0] for prompt in prompts]
        driver.run()
        return [row.vector for row in rows]

    alone = [weights([prompt])[0] for prompt in PROMPTS]
    assert weights(PROMPTS) == alone and weights(PROMPTS[::-1]) == alone[::-1]
    for prompt, found in zip(PROMPTS, alone, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0]
        expected = torch.log1p(torch.relu(logits)).amax(0).numpy()
        assert expected.max() > 0.1 and (expected == 0).any()
        assert np.abs(np.array(found) - expected).max() < (1e-5 if dtype == "float32" else 0.1)


@pytest.mark.parametrize(
    "field", [{"tie_word_embeddings": False}, {"hidden_act": "relu"}, {"architectures": ["BertModel"]}]
)
def test_heads_of_the_vocabulary_that_are_not_known(field: dict[str, object]):
    config = {"architectures": ["BertForMaskedLM"], "hidden_act": "gelu"}
    assert vocabulary_head(config) is not None and vocabulary_head(config | field) is None


@pytest.mark.parametrize(("field", "known"), [("activation", False), ("hidden_act", True)])
def test_the_activation_of_distilbert_has_a_name_of_its_own(field: str, known: bool):
    config = {"architectures": ["DistilBertForMaskedLM"], field: "relu"}
    assert (vocabulary_head(config) is not None) == known


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ('{"n_heads": 5}', r"n_heads is 5, but must divide dim \(48\)"),
        ('{"hidden_dim": null}', "has no field hidden_dim"),
        ('{"activation": "mish"}', "activation is .*, but only these are known"),
        ('{"hidden_act": "relu"}', "hidden_act is .*, but this field is not known"),
    ],
)
def test_fields_of_distilbert_that_are_refused(checkpoint: Callable[..., Path], field: str, message: str):
    with pytest.raises(StartupError, match=message):
        Driver(checkpoint("distilbert"), config_overrides=field)


def test_positions_that_the_padding_token_leaves_none_of(checkpoint: Callable[..., Path]):
    with pytest.raises(StartupError, match="max_position_embeddings is 2, but must be more than 2"):
        Driver(checkpoint("roberta"), config_overrides='{"max_position_embeddings": 2}')


def test_a_step_without_memory_is_not_computed_in_pieces(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """A piece would not see the tokens of the others."""
    driver = Driver(checkpoint("bert"), record=False, dtype="float32")

    def fails(*arguments: object) -> torch.Tensor:
        raise MemoryError

    monkeypatch.setattr(driver.runner.backend, "compute", fails)
    with pytest.raises(MemoryError):
        vectors(driver, POOLING_TYPE_LAST)
    assert not driver.runner.backend._num_retried


@pytest.mark.parametrize(
    ("family", "types"), [("bert", 2), ("bert", 1), ("roberta", 1), ("distilbert", 0), ("modern_bert", 0)]
)
def test_pairs(checkpoint: Callable[..., Path], family: str, types: int):
    """The second text has other types, where the model has some; the same bits beside single texts."""
    fields = {"type_vocab_size": types, "hidden_size": 64} if types else {}
    folder = checkpoint(family, **fields)
    driver = Driver(folder, record=False, dtype="float32", block_size=16)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    pairs = [(prompt, 1 + len(prompt) // 3) for prompt in PROMPTS[1:]]
    poolings = [Pooling(type=POOLING_TYPE_MEAN, second_text=second) for _, second in pairs]
    rows = []
    for (prompt, _), pooling in zip(pairs, poolings, strict=True):
        rows += driver.add(prompt, 1, pooling=pooling)
        rows += driver.add(prompt, 1, pooling=Pooling(type=POOLING_TYPE_MEAN))
    driver.run()
    for index, (prompt, second) in enumerate(pairs):
        alone = driver.add(prompt, 1, pooling=poolings[index])[0]
        driver.run()
        pair, single = rows[2 * index], rows[2 * index + 1]
        assert alone.vector == pair.vector and (pair.vector != single.vector) == (types == 2)
        given = [0] * second + [1] * (len(prompt) - second)
        more = {"token_type_ids": torch.tensor([given])} if types == 2 else {}
        with torch.inference_mode():
            wanted = model(torch.tensor([prompt]), **more).last_hidden_state[0].mean(0).numpy()
        assert np.abs(np.array(pair.vector) - wanted).max() <= 1e-5 * np.abs(wanted).max()
