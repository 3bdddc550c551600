"""What a step says reaches every layer with parameters, and values may stand for token ids."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.attention.kv_cache_spec import CacheLayout
from kernels.batch import InputBatch, InputEmbeddings
from tests.worker.step.test_rows import new_row
from worker.families.registry import read_model_config
from worker.layers.linear import ColumnLinear, RowLinear
from worker.memory.kv_cache import KVCache
from worker.model_input import build_input_batch
from worker.models.base import LanguageModel
from worker.models.registry import FAMILIES
from worker.parallel import Placement
from worker.step.rows import RowTable
from worker.weights.checkpoint import Checkpoint
from worker.weights.loader import load_weights, weight_table

CPU = torch.device("cpu")
Checkpoints = Callable[..., Path]
PROMPT = [5, 100, 217, 210, 7]


@pytest.fixture(params=["llama", "gpt2", "opt"])
def folder(request: pytest.FixtureRequest, checkpoint: Checkpoints) -> Path:
    return checkpoint(request.param)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def model_and_step(folder: Path) -> tuple[LanguageModel, InputBatch, KVCache]:
    """With the weights of the checkpoint, and a step of one prompt."""
    config = read_model_config(folder)
    family = FAMILIES[config.architecture]
    model = family.build(config, Placement(torch.float32, CPU))
    with Checkpoint(folder) as checkpoint:
        table = weight_table(model, family.names)
        load_weights(checkpoint, table, family.unused, lambda fraction: None, family.optional_prefix)
    cache = KVCache(model.kv_cache_specs(), CacheLayout(4, 8, torch.float32, CPU))
    rows = RowTable(1, 16, config.vocab_size, 4, 8)
    rows.add(new_row(0, PROMPT, [0, 1]))
    one, counts = np.zeros(1, int), np.array([len(PROMPT)])
    batch = build_input_batch(rows, one, one, counts, one, set(cache.specs), cache.layout)
    return model, batch, cache


def test_every_linear_layer_sees_the_step(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """As layers need that add a low-rank part which depends on the row of each token."""
    model, batch, cache = model_and_step(folder)
    seen: list[tuple[int, InputBatch]] = []
    for kind in (ColumnLinear, RowLinear):

        def forward(self: ColumnLinear | RowLinear, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
            seen.append((id(self), batch))
            return self.product(x)

        monkeypatch.setattr(kind, "forward", forward)
    model(batch, cache.layers)
    layers = [id(layer) for layer in model.modules() if isinstance(layer, ColumnLinear | RowLinear)]
    assert sorted(layer for layer, _ in seen) == sorted(layers)
    assert all(context is batch for _, context in seen)


def test_values_stand_for_token_ids(folder: Path):
    """The embeddings of two tokens, given as values, make the same hidden states as their ids."""
    model, batch, cache = model_and_step(folder)
    expected = model(batch, cache.layers)
    tokens = torch.tensor([1, 3])
    values = model.embedding(batch)[tokens]
    token_ids = batch.token_ids.clone()
    token_ids[tokens] = 0
    assert not torch.equal(model(replace(batch, token_ids=token_ids), cache.layers), expected)
    given = replace(batch, token_ids=token_ids, input_embeddings=InputEmbeddings(tokens, values))
    assert torch.equal(model(given, cache.layers), expected)
