"""Tensor parallelism is a matter of sizes: two ranks in two threads compute what one does."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.attention.kv_cache_spec import CacheLayout
from tests.worker.step.test_rows import new_row
from worker.families.registry import read_model_config
from worker.memory.kv_cache import KVCache
from worker.model_input import build_input_batch
from worker.models.registry import FAMILIES
from worker.parallel import ParallelGroup, Placement
from worker.step.rows import RowTable
from worker.weights.checkpoint import Checkpoint
from worker.weights.loader import load_weights, weight_table

CPU = torch.device("cpu")
PROMPTS = [[5, 100, 317, 210, 7], [9, 0, 160]]


class Exchange:
    """Where the threads of a group meet: every rank leaves a tensor and sees those of all."""

    def __init__(self, size: int) -> None:
        self.parts: list[torch.Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def swap(self, rank: int, part: torch.Tensor) -> list[torch.Tensor]:
        self.parts[rank] = part
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts


@dataclass(frozen=True)
class ThreadGroup(ParallelGroup):
    """A group whose ranks are threads."""

    exchange: Exchange = field(kw_only=True)

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.exchange.swap(self.rank, partial)).sum(0)

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.exchange.swap(self.rank, part), -1)


@torch.inference_mode()
def logits(folder: Path, group: ParallelGroup) -> torch.Tensor:
    """Of every token of the prompts, computed in one step by one rank."""
    config = read_model_config(folder)
    family = FAMILIES[config.architecture]
    with Checkpoint(folder) as checkpoint:
        model = family.build(config, Placement(torch.float32, CPU, group))
        table = weight_table(model, family.names)
        load_weights(checkpoint, table, family.unused, lambda fraction: None, family.optional_prefix)
    cache = KVCache(model.kv_cache_specs(), CacheLayout(4, 8, torch.float32, CPU))
    rows = RowTable(2, 16, config.vocab_size, 4, 8)
    for row, prompt in enumerate(PROMPTS):
        rows.add(new_row(row, prompt, [row * 2, row * 2 + 1]))
    counts = np.array([len(prompt) for prompt in PROMPTS])
    batch = build_input_batch(
        rows, np.arange(2), np.zeros(2, int), counts, np.arange(2), set(cache.specs), cache.layout
    )
    return model.logits(model(batch, cache.layers))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
        ("qwen3", {"vocab_size": 319}),
        ("opt", {"word_embed_proj_dim": 32, "do_layer_norm_before": False}),
        ("gpt2", {"vocab_size": 318}),
        ("glm4", {}),
        ("cohere2", {"attention_bias": True}),
        ("gemma3", {}),
        ("youtu", {"attention_bias": True}),
    ],
)
def test_ranks_together_compute_what_one_does(
    family: str, overrides: dict[str, object], size: int, checkpoint: Callable[..., Path]
):
    """Vocabularies that do not divide too, and more ranks than KV heads."""
    folder = checkpoint(family, **overrides)
    expected = logits(folder, ParallelGroup())
    exchange = Exchange(size)
    results: dict[int, torch.Tensor] = {}

    def work(rank: int) -> None:
        results[rank] = logits(folder, ThreadGroup(rank, size, exchange=exchange))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(size):
        assert results[rank].shape == expected.shape
        assert (results[rank] - expected).abs().max() < 1e-4 * expected.abs().max()
