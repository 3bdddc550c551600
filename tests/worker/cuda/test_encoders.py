"""Encoders on the CUDA path, in Triton's interpreter: the vectors of the CPU's path except for rounding, with
the same bits alone, among others, in any order and in graphs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from pagewire.checkpoints.heads import VOCABULARY
from pagewire.config import WorkerConfig
from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_ALL,
    POOLING_TYPE_CLS,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MAX,
    POOLING_TYPE_MEAN,
    Pooling,
)
from tests.worker.adapters.test_rows import adapter_of, synthetic
from tests.worker.cuda.host_devices import (
    SMALL,
    LateDevice,
    host_device,
    interpret,
    load_on,
    load_on_the_host,
)
from tests.worker.fakes import Driver
from worker.load import load
from worker.platforms.cuda import CudaPlatform

Checkpoints = Callable[..., Path]
MakeDriver = Callable[..., Driver]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"num_hidden_layers": 1}),
    "modern_bert, windows": (
        "modern_bert",
        {"num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2},
    ),
    "embedding_gemma": (
        "embedding_gemma",
        {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "roberta": ("roberta", {"num_hidden_layers": 1}),
    "xlm_roberta": ("xlm_roberta", {"num_hidden_layers": 1}),
    "distilbert": ("distilbert", {"n_layers": 1}),
    "modern_bert": ("modern_bert", {}),
    "bert, relu, one type": ("bert", {"num_hidden_layers": 1, "hidden_act": "relu", "type_vocab_size": 1}),
}
PROMPTS = [[3 + (7 * row + 5 * place) % 300 for place in range(size)] for row, size in enumerate((1, 11, 18))]
SIZES = {**SMALL, "max_num_batched_tokens": 128}
"""Room for all prompts of a test in one step."""
KINDS = POOLING_TYPE_CLS, POOLING_TYPE_LAST, POOLING_TYPE_MAX, POOLING_TYPE_MEAN, POOLING_TYPE_ALL
Row = tuple[list[int], Pooling]


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> MakeDriver:
    """Drives the CUDA path. From its call on kernels are Triton's: the CPU's path has run before."""

    def make(folder: Path, **options: Any) -> Driver:
        interpret(monkeypatch)
        return Driver(
            folder, **{"loader": load_on_the_host, "record": False, "dtype": "float32", **SIZES, **options}
        )

    return make


on_a_cpu = partial(Driver, record=False, dtype="float32", **SIZES)


def vectors(driver: Driver, *rows: Row) -> list[list[float]]:
    made = [driver.add(prompt, 1, pooling=pooling)[0] for prompt, pooling in rows]
    driver.run()
    return [row.vector for row in made]


def assert_near(found: list[list[float]], expected: list[list[float]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(np.array(ours) - np.array(theirs)).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_vectors(variant: str, checkpoint: Checkpoints, on_the_host: MakeDriver):
    """Of every kind of pooling."""
    family, fields = VARIANTS[variant]
    folder = checkpoint(family, **fields)
    rows = [(PROMPTS[index % 3], Pooling(type=kind)) for index, kind in enumerate(KINDS)]
    expected = vectors(on_a_cpu(folder), *rows)
    driver = on_the_host(folder)
    assert driver.ready.model.whole_prompts and not driver.ready.model.exactness_caveat
    found = vectors(driver, *rows)
    assert_near(found, expected)
    assert min(np.abs(vector).max() for vector in found) > 0.1


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [("bert", "float32"), ("modern_bert, windows", "bfloat16"), ("embedding_gemma", "bfloat16")],
)
def test_the_same_bits_alone_and_among_others(
    variant: str, dtype: str, checkpoint: Checkpoints, on_the_host: MakeDriver
):
    """In any order, and in graphs, whose padding is beside them."""
    family, fields = VARIANTS[variant]
    driver = on_the_host(checkpoint(family, **fields), dtype=dtype)
    rows = [(prompt, Pooling(type=POOLING_TYPE_ALL)) for prompt in PROMPTS]
    alone = [vectors(driver, row)[0] for row in rows]
    assert vectors(driver, *rows) == alone
    driver.runner.backend.capture(32)  # type: ignore[attr-defined]
    assert vectors(driver, *rows[::-1]) == alone[::-1]
    assert vectors(driver, rows[1])[0] == alone[1]


def test_pairs(checkpoint: Checkpoints, on_the_host: MakeDriver):
    """Tokens of the second text have the other type, in graphs too, and beside single texts."""
    folder = checkpoint("bert", num_hidden_layers=1)
    single, mean = Pooling(type=POOLING_TYPE_MEAN), partial(Pooling, type=POOLING_TYPE_MEAN)
    rows = [(PROMPTS[1], mean(second_text=7)), (PROMPTS[1], single), (PROMPTS[2], mean(second_text=1))]
    expected = vectors(on_a_cpu(folder), *rows)
    driver = on_the_host(folder)
    found = vectors(driver, *rows)
    assert_near(found, expected)
    assert found[0] != found[1]
    driver.runner.backend.capture(42)  # type: ignore[attr-defined]
    assert vectors(driver, *rows) == found
    for row, vector in zip(rows, found, strict=True):
        assert vectors(driver, row) == [vector], "types of the step before are gone"


def test_weights_of_the_vocabulary(checkpoint: Checkpoints, tmp_path: Path, on_the_host: MakeDriver):
    """Sparse vectors, whose logits the device computes behind the step."""
    torch.manual_seed(3)
    model = AutoModelForMaskedLM.from_pretrained(checkpoint("bert", num_hidden_layers=1))
    for parameter in model.cls.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    rows = [(prompt, Pooling(type=POOLING_TYPE_MAX, head=VOCABULARY)) for prompt in PROMPTS]
    expected = vectors(on_a_cpu(tmp_path), *rows)
    devices: list[LateDevice] = []

    def load_late(command: Any) -> Any:
        devices.append(LateDevice())
        return load_on(devices[0], command)

    driver = on_the_host(tmp_path, loader=load_late)
    assert list(driver.ready.model.head_sizes) == [0, 0, model.config.vocab_size]
    found = vectors(driver, *rows)
    assert_near(found, expected)
    assert [vectors(driver, row)[0] for row in rows] == found


def test_adapters(checkpoint: Checkpoints, on_the_host: MakeDriver):
    """A row with one has the bits that it has alone, and one without has its own."""
    folder = checkpoint("bert", num_hidden_layers=1)
    driver = on_the_host(folder, max_loras=1)
    backend: Any = driver.runner.backend  # type: ignore[attr-defined]
    backend.adapters.store.add(synthetic(backend.model, 0))
    pooling = Pooling(type=POOLING_TYPE_MEAN)

    def run(*owners: int | None) -> list[list[float]]:
        rows = [driver.add(PROMPTS[1], 1, pooling=pooling, adapter=adapter_of(owner))[0] for owner in owners]
        driver.run()
        return [row.vector for row in rows]

    (plain,), (adapted,) = run(None), run(0)
    assert plain != adapted
    assert run(0, None, 0) == [adapted, plain, adapted]


def test_a_whole_start(checkpoint: Checkpoints, on_the_host: MakeDriver):
    """With a profile, graphs and a warm-up, in which rows pool: nothing that samples is captured. The cache
    has room for the prompts of two steps, which leave nothing in it, and there is no swap space."""
    folder = checkpoint("bert", num_hidden_layers=1)
    row = (PROMPTS[1][:8], Pooling(type=POOLING_TYPE_MEAN))
    expected = vectors(on_a_cpu(folder), row)
    sizes = {"max_num_seqs": 2, "num_blocks": 0, "max_num_batched_tokens": 8, "swap_space_bytes": 1 << 20}
    driver = on_the_host(
        folder, loader=lambda command: load(command, CudaPlatform(WorkerConfig(), host_device())), **sizes
    )
    backend: Any = driver.runner.backend  # type: ignore[attr-defined]
    assert backend.graphs._sizes == [1, 2, 4, 8] and not backend.sampling_graphs
    assert driver.ready.num_blocks == 2 and not driver.ready.num_host_blocks
    assert driver.ready.model.max_model_len == 8
    assert_near(vectors(driver, row), expected)
