"""Heads behind a pooled vector: what transformers and sentence-transformers compute."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from frontend.model.pooling_config import TYPES
from pagewire.checkpoints.heads import CLASSIFIER, DENSE, classifier_modules, read_classes
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_ALL,
    POOLING_TYPE_CLS,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MAX,
    POOLING_TYPE_MEAN,
    POOLING_TYPE_WEIGHTED_MEAN,
    Pooling,
)
from tests.worker.fakes import Driver
from tests.worker.pooling.test_rows import FITTING, PROMPTS, vectors
from worker.pooling.stages import ACTIVATIONS, BLOCK, LOGITS_AT_ONCE, Head, SparseHead, Stage, StageNorm


def classifier(whole: Path, folder: Path, labels: int) -> tuple[Path, str]:
    """Writes a classifier with the decoder of a checkpoint. Returns its architecture, too."""
    shutil.copytree(whole, folder)
    fields = json.loads((folder / "config.json").read_text())
    (name,) = fields["architectures"]
    name = name.replace("ForCausalLM", "ForSequenceClassification")
    table = {str(index): f"label {index}" for index in range(labels)}
    fields |= {"architectures": [name], "id2label": table, "label2id": {v: int(k) for k, v in table.items()}}
    fields["pad_token_id"] = 0
    (folder / "config.json").write_text(json.dumps(fields))
    tensors = load_file(whole / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    generator = torch.Generator().manual_seed(labels)
    tensors["score.weight"] = torch.randn(labels, fields["hidden_size"], generator=generator)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder, name


@pytest.mark.parametrize(("family", "labels"), [("llama", 3), ("qwen3", 1), ("gemma", 2)])
def test_logits_are_those_of_transformers(
    checkpoint: Callable[..., Path], tmp_path: Path, family: str, labels: int
):
    folder, name = classifier(checkpoint(family, **FITTING), tmp_path / "classifier", labels)
    driver = Driver(folder, record=False, dtype="float32", block_size=16)
    assert list(driver.ready.model.head_sizes) == [0, labels]
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    assert type(model).__name__ == name
    pooling = Pooling(type=POOLING_TYPE_LAST, head=CLASSIFIER)
    found = vectors(driver, pooling)
    for prompt, logits in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0].numpy()
        assert np.abs(np.array(logits) - expected).max() < 5e-4
    assert [vectors(driver, pooling, [prompt])[0] for prompt in PROMPTS] == found


@pytest.mark.parametrize(
    ("family", "labels", "fields"),
    [
        ("bert", 3, {}),
        ("roberta", 1, {}),
        ("xlm_roberta", 2, {}),
        ("distilbert", 2, {}),
        ("modern_bert", 2, {}),
        (
            "modern_bert",
            1,
            {"classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True, "norm_eps": 1e-3},
        ),
    ],
)
def test_logits_of_encoders_are_those_of_transformers(
    checkpoint: Callable[..., Path], tmp_path: Path, family: str, labels: int, fields: dict[str, object]
):
    """The first token's state, or the mean, through what each family has before the classifier."""
    whole = checkpoint(family, hidden_size=64, **fields)
    torch.manual_seed(5)
    model = AutoModelForSequenceClassification.from_pretrained(whole, num_labels=labels).eval()
    for name, parameter in model.named_parameters():
        if re.match(r"(pre_)?classifier|head|bert\.pooler", name):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    driver = Driver(tmp_path, record=False, dtype="float32", block_size=16)
    assert list(driver.ready.model.head_sizes) == [0, labels]
    classes = read_classes(json.loads((tmp_path / "config.json").read_text()))
    assert classes is not None and len(classes.labels) == labels
    found = vectors(driver, Pooling(type=TYPES[classes.pooling], head=CLASSIFIER))
    for prompt, logits in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0].numpy()
        assert np.abs(np.array(logits) - expected).max() < 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize(
    ("field", "value"), [("classifier_pooling", "max"), ("classifier_activation", "relu"), ("norm_eps", 2)]
)
def test_classifiers_of_modern_bert_that_are_not_known(field: str, value: object):
    config = {"architectures": ["ModernBertForSequenceClassification"], field: value}
    with pytest.raises(StartupError, match=f"config.json: {field}"):
        assert read_classes(config) and classifier_modules(config)


def test_a_classifier_without_or_with_another_matrix(checkpoint: Callable[..., Path], tmp_path: Path):
    folder, _ = classifier(checkpoint("llama"), tmp_path / "classifier", 3)
    tensors = load_file(folder / "model.safetensors")
    tensors["score.weight"] = tensors["score.weight"][:2].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartupError, match=r"score.weight has shape \[2, "):
        Driver(folder, record=False)
    del tensors["score.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartupError, match=r"lacks tensor score.weight"):
        Driver(folder, record=False)


def with_dense(whole: Path, folder: Path, sizes: list[int]) -> Path:
    """Writes a checkpoint with Dense modules from and to these sizes."""
    shutil.copytree(whole, folder)
    names = [f"{number}_Dense" for number in range(2, len(sizes) + 1)]
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    modules += [{"type": "x.Dense", "path": name} for name in names]
    (folder / "modules.json").write_text(json.dumps(modules))
    for number, name in enumerate(names):
        (folder / name).mkdir()
        one, other = sizes[number : number + 2]
        generator = torch.Generator().manual_seed(number)
        tensors = {"linear.weight": torch.randn(other, one, generator=generator) / 8}
        if not number:
            tensors["linear.bias"] = torch.randn(other, generator=generator)
        save_file(tensors, folder / name / "model.safetensors")
        activation = "torch.nn.modules." + ("linear.Identity" if number else "activation.Tanh")
        fields = {
            "in_features": one,
            "out_features": other,
            "bias": not number,
            "activation_function": activation,
        }
        (folder / name / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.cpu_kernels
def test_dense_modules(checkpoint: Callable[..., Path], tmp_path: Path):
    whole = checkpoint("llama", **FITTING)
    size = json.loads((whole / "config.json").read_text())["hidden_size"]
    folder = with_dense(whole, tmp_path / "dense", [size, 50, 7])
    driver = Driver(folder, record=False, dtype="float32", block_size=16)
    assert list(driver.ready.model.head_sizes) == [7]
    plain = vectors(driver, Pooling(type=POOLING_TYPE_MEAN))
    found = vectors(driver, Pooling(type=POOLING_TYPE_MEAN, head=DENSE, dimensions=5))
    first, second = (load_file(folder / name / "model.safetensors") for name in ("2_Dense", "3_Dense"))
    for state, vector in zip(plain, found, strict=True):
        inner = torch.tanh(first["linear.weight"] @ torch.tensor(state) + first["linear.bias"])
        assert np.abs((second["linear.weight"] @ inner).numpy()[:5] - np.array(vector)).max() < 1e-5
    last, each = (
        vectors(driver, Pooling(type=kind, head=DENSE)) for kind in (POOLING_TYPE_LAST, POOLING_TYPE_ALL)
    )
    assert [len(tokens) for tokens in each] == [7 * len(prompt) for prompt in PROMPTS]
    assert [tokens[-7:] for tokens in each] == last


def test_dense_modules_that_do_not_fit_are_no_head(
    checkpoint: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    driver = Driver(with_dense(checkpoint("llama"), tmp_path / "dense", [5, 7]), record=False)
    assert not driver.ready.model.head_sizes
    assert "2_Dense takes 5 features" in caplog.text


def test_random_weights_have_random_heads(checkpoint: Callable[..., Path], tmp_path: Path):
    folder, _ = classifier(checkpoint("llama"), tmp_path / "classifier", 3)
    driver = Driver(folder, record=False, load_format="dummy")
    (vector,) = vectors(driver, Pooling(type=POOLING_TYPE_LAST, head=CLASSIFIER), PROMPTS[:1])
    assert len({*vector}) == 3


def test_a_product_is_that_of_float64_and_finite():
    generator = np.random.default_rng(3)
    weight, x = generator.standard_normal((5, 3000), np.float32), generator.standard_normal(3000, np.float32)
    (found,) = Stage(weight)(x[None])
    assert found.dtype == np.float32 and np.abs(found - weight.astype(np.float64) @ x).max() < 1e-4
    head = Head((Stage(weight), Stage(np.eye(5, dtype=np.float32) * 1000, None, "Sigmoid")))
    assert head(x[None]).tolist() == [[float(value > 0) for value in found]]


def test_weights_are_those_of_the_largest_logits():
    """Of all positions, more than are computed at once; what is not a number stays so."""
    generator = np.random.default_rng(6)
    weight, bias = generator.standard_normal((9, 5), np.float32), generator.standard_normal(9, np.float32)
    states = generator.standard_normal((2 * LOGITS_AT_ONCE + 3, 5), np.float32)
    head = SparseHead(Stage(np.eye(5, dtype=np.float32)), lambda x: x @ weight.T, bias)
    expected = (states @ weight.T + bias).max(axis=0)
    largest = head.largest(states)
    assert largest.shape == (1, head.size) and np.abs(largest[0] - expected).max() < 1e-5
    middle = np.median(expected)
    found = head(largest - middle)
    assert np.abs(found[0] - np.log1p(np.maximum(expected - middle, 0))).max() < 1e-5 and (found == 0).any()
    states[1, 2] = np.nan
    assert np.isnan(head(head.largest(states))).all()


@pytest.mark.parametrize("shape", [(1, 8), (5, 768), (300, 1000), (3, BLOCK + 1), (1024, 33)])
def test_a_product_has_the_bits_that_it_has_alone(shape: tuple[int, int]):
    """Whatever block of the weight a row is in, and however many vectors there are."""
    generator = np.random.default_rng(4)
    weight = generator.standard_normal(shape, np.float32)
    x = generator.standard_normal((7, shape[1]), np.float32)
    alone = np.stack([[np.add.reduce(row * vector) for row in weight] for vector in x])
    assert (Stage(weight)(x).view(np.uint32) == alone.view(np.uint32)).all()
    assert (Stage(weight)(x[3:4]).view(np.uint32) == alone[3:4].view(np.uint32)).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_norm_and_an_activation_are_of_each_vector(activation: str):
    """Each has the bits that it has alone."""
    generator = np.random.default_rng(5)
    weight, x = (
        generator.standard_normal((33, 20), np.float32),
        generator.standard_normal((7, 20), np.float32),
    )
    stage = Stage(weight, weight[:, 0], activation, StageNorm(weight[:, 1], weight[:, 2], 1e-5))
    together, alone = stage(x), np.concatenate([stage(vector[None]) for vector in x])
    assert (together.view(np.uint32) == alone.view(np.uint32)).all()


@pytest.mark.cpu_kernels
def test_first_largest_and_weighted(checkpoint: Callable[..., Path]):
    driver = Driver(checkpoint("llama", **FITTING), record=False, dtype="float32", block_size=16)
    prompt = PROMPTS[1]
    states = np.array(
        [
            vectors(driver, Pooling(type=POOLING_TYPE_LAST), [prompt[: end + 1]])[0]
            for end in range(len(prompt))
        ]
    )
    weights = np.arange(1, len(prompt) + 1)[:, None]
    expected = {
        POOLING_TYPE_CLS: states[0],
        POOLING_TYPE_MAX: states.max(0),
        POOLING_TYPE_WEIGHTED_MEAN: (states * weights).sum(0) / weights.sum(),
    }
    for kind, vector in expected.items():
        driver.budget = 4096
        (found,) = vectors(driver, Pooling(type=kind), [prompt])
        assert np.abs(np.array(found) - vector).max() < 1e-6
        driver.budget = 4
        assert vectors(driver, Pooling(type=kind), [prompt]) == [found]
