"""Threads as the ranks of a tensor-parallel group, and products whose bits do not depend on their shapes."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kernels.api import adapters
from kernels.attention.kv_cache_spec import CacheLayout
from kernels.torch_ops import Ops
from tests.patience import PATIENCE_S
from tests.worker.fakes import initialize
from tests.worker.step.test_rows import new_row
from worker.cpu.weights import CPU, OwnBits
from worker.families.registry import read_model_config
from worker.layers.linear import RowLinear
from worker.layers.matrix import PlainMethod
from worker.memory.kv_cache import KVCache
from worker.memory.row_states import RowStates, layer_caches
from worker.model_input import build_input_batch
from worker.models.base import LanguageModel
from worker.parallel import ONE_RANK, ONE_STAGE, Groups, ParallelGroup, Stage
from worker.startup.model import load_model
from worker.step.rows import RowTable
from worker.weights.held_bits import HeldBits

LEAVES = 4
PROMPTS = [5, 100, 317, 210, 7, 3, 12, 90, 41, 250, 66, 19], [9, 0, 160]
"""One is longer than a window of these models."""
BLOCKS, BLOCK_SIZE = 4, 4  # of each row
Result = TypeVar("Result")


class Exchange:
    """Where the threads of a group meet: every rank leaves a tensor and sees those of all."""

    def __init__(self, size: int) -> None:
        self.parts: list[torch.Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size, timeout=PATIENCE_S)

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

    def gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        parts = self.exchange.swap(self.rank, part)
        assert len({(each.shape, each.dtype) for each in parts}) == 1
        return [each.clone() for each in parts]


class SilentRank(ParallelGroup):
    """A rank that loads, and never computes."""

    def gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        raise AssertionError("it does not compute")


def on_ranks(
    size: int, work: Callable[[ParallelGroup], Result], kind: type[ThreadGroup] = ThreadGroup
) -> list[Result]:
    """Returns what each rank of a group makes. Raises what the first one raises. kind: of group."""
    if size == 1:
        return [work(ONE_RANK)]
    exchange, results, errors = Exchange(size), dict[int, Result](), list[BaseException]()

    def run(rank: int) -> None:
        try:
            results[rank] = work(kind(rank, size, exchange=exchange))
        except BaseException as error:
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            exchange.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]


def chain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[T, K], [N, K] -> [T, N] float32: the sum of each output by itself, in the order of K."""
    return (x.float()[:, None] * weight.float()).cumsum(-1)[..., -1]


def tree(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum of neighbours, then of neighbouring sums."""
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _finished(y: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, wide: bool) -> torch.Tensor:
    y = y if bias is None else y + bias.float()
    return y if wide else y.to(dtype)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """In place of the function in kernels.ops.attention.paged_attention: each head by itself."""
    scores = (query[..., None, :] * keys[..., None, :, :]).cumsum(-1)[..., -1] * scale
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    scores = scores + mask
    if sinks is not None:
        scores = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1)
    weights = scores.softmax(-1)[..., : keys.shape[-2]]
    return (weights[..., None] * values[..., None, :, :]).cumsum(-2)[..., -1, :]


def attend_head_by_head(patch: pytest.MonkeyPatch) -> None:
    """Attention by torch: a head's bits do not depend on how many there are."""
    patch.setattr("kernels.ops.attention.paged_attention._attend", _attend)


def _in_whole_vectors(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function of each value whose bits do not depend on the value's place: torch computes what does not
    fill a vector by another formula."""

    def compute(x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1)
        return function(F.pad(flat, (0, -flat.numel() % 128)))[: flat.numel()].view(x.shape)

    return compute


def multiply_by_ranges(patch: pytest.MonkeyPatch) -> None:
    """Products of matrices are chains over their inputs; those whose inputs ranks divide are trees of LEAVES
    chains, of which a rank has its part. Products of adapters and attention are chains, too, and functions of
    values have the same bits wherever they stand."""

    def plain(
        self: PlainMethod, ops: Ops, x: torch.Tensor, bias: torch.Tensor | None, wide: bool, order: Any = None
    ) -> torch.Tensor:
        return _finished(chain(x, self.weight), bias, x.dtype, wide)

    def by_ranges(self: RowLinear, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        leaves = LEAVES // self.group.size
        parts = zip(x.chunk(leaves, 1), self.weight.chunk(leaves, 1), strict=True)
        return _finished(tree([chain(*part) for part in parts]), self._added_bias, x.dtype, wide)

    patch.setattr(PlainMethod, "product", plain)
    patch.setattr(RowLinear, "product", by_ranges)
    attend_head_by_head(patch)
    patch.setattr("torch.nn.functional.linear", chain)  # of adapters
    for name in ("exp", "sigmoid", "tanh"):
        patch.setattr(torch, name, _in_whole_vectors(getattr(torch, name)))
    patch.setattr(torch.Tensor, "exp", torch.exp)
    for module in ("layers.norms", "states.convolution"):
        patch.setattr(f"kernels.ops.{module}.silu", _in_whole_vectors(F.silu))
    for module in ("delta_rule", "selective_scan"):
        patch.setattr(f"kernels.ops.states.{module}.softplus", _in_whole_vectors(F.softplus))


def load_rank(
    folder: Path,
    group: ParallelGroup,
    dtype: str = "float32",
    bits: HeldBits | None = None,
    quantization: str = "",
    stage: Stage = ONE_STAGE,
) -> LanguageModel:
    """The part of a model that a rank has. bits: None: packed weights are unpacked."""
    bits = OwnBits("torch multiplies") if bits is None else bits
    command = initialize(folder, dtype=dtype, quantization=quantization)
    config, groups = read_model_config(folder), Groups(group, group, stage)
    with torch.inference_mode():
        return load_model(config, command, CPU, lambda *_: None, lambda each: each, bits, groups=groups)[0]


def _all_with(adapter: adapters.AdapterWeights, count: int) -> adapters.StepAdapters:
    return adapters.StepAdapters(
        torch.arange(count), torch.zeros(count, dtype=torch.int64), [(adapter, count)]
    )


@torch.inference_mode()
def run_model(
    model: LanguageModel,
    vocab_size: int,
    steps: int = 4,
    adapter: adapters.AdapterWeights | None = None,
) -> list[torch.Tensor]:
    """What each step gives: of the prompts, then of the most probable tokens. Logits, or of a model without
    a head, hidden states of one step. adapter: of all tokens."""
    dtype = next(model.parameters()).dtype
    layout = CacheLayout(BLOCK_SIZE, BLOCKS * len(PROMPTS), dtype, CPU)
    cache = KVCache(model.kv_cache_specs(), layout)
    specs = model.state_specs()
    states = RowStates(specs, len(PROMPTS), CPU) if specs else None
    caches = layer_caches(model, cache, states)
    rows = RowTable(len(PROMPTS), BLOCKS * BLOCK_SIZE, vocab_size, BLOCK_SIZE, layout.num_blocks)
    for row, prompt in enumerate(PROMPTS):
        rows.add(
            new_row(row, [each % vocab_size for each in prompt], [row * BLOCKS + n for n in range(BLOCKS)])
        )
    every, found = np.arange(len(PROMPTS)), list[torch.Tensor]()
    for _ in range(steps if model.has_head else 1):
        starts = rows.num_computed[: len(PROMPTS)].copy() if found else np.zeros(len(PROMPTS), np.int64)
        counts = rows.num_tokens[: len(PROMPTS)] - starts
        batch = build_input_batch(rows, every, starts, counts, every, set(cache.specs), layout, bool(specs))
        if adapter is not None:
            of_tokens, of_logits = (_all_with(adapter, count) for count in (int(counts.sum()), len(every)))
            batch = replace(batch, adapters=of_tokens, logit_adapters=of_logits)
        hidden = model(batch, caches)
        found.append(model.sampled_logits(hidden, batch) if model.has_head else hidden)
        if model.has_head:
            rows.append(every, found[-1].argmax(-1).numpy())
    return found
