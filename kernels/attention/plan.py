"""The plan that attention layers follow in one step, whatever computes it.

    torch_plan.py   torch, on any device: gathers keys and values
    block_plan.py   the CPU's compiled kernels
    paged_plan.py   Triton's kernels, on CUDA

A plan is made once per step and kind of layer (kernels.attention.kv_cache_spec) and serves all layers of that
kind: it holds the block tables, the slots of the step's tokens, and what the kernels precompute from them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.torch_ops import HeadNorm, Ops

LayerCache = tuple[torch.Tensor, ...]
"""The part of the KV cache that belongs to one layer: one tensor [B, ...] per plane of its KVCacheSpec."""


@dataclass(frozen=True)
class Rotation:
    """The rotary angles of one step, shared by all layers: cos and sin as kernels.ops.layers.rotary takes
    them."""

    cos: torch.Tensor  # [P, D] float32
    sin: torch.Tensor  # [P, D] float32
    index: torch.Tensor | None = None  # [T] int64: each token's row of cos and sin; None: its own number
    ops: Ops = Ops()  # which rotate
    queries_only: bool = False  # keys stay as they are

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, N, D] -> [T, N, D]; on a CPU, x itself may be overwritten and returned."""
        return self.ops.rotate(x, self.cos, self.sin, self.index)


HeadNorms = tuple[HeadNorm, HeadNorm]
"""The norms of queries and of keys, applied before the rotation."""


@dataclass(frozen=True)
class Scoring:
    """How a layer makes weights of the products of queries and keys."""

    scale: float
    soft_cap: float | None = None  # scores become soft_cap * tanh(score / soft_cap)
    sinks: torch.Tensor | None = None  # [H] float32: the score of one more key of each head, without a value


class AttentionPlan(Protocol):
    """Stores and attends for every layer of one kind, in one step."""

    def store_and_attend(
        self,
        qkv: torch.Tensor,
        cache: LayerCache,
        scoring: Scoring,
        rotation: Rotation | None = None,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        """qkv: [T, H + 2 K, D], the heads of queries, keys and values as one projection leaves them; it may
        be overwritten. Returns [T, H, D], contiguous.

        Norms and rotates the heads of queries and keys (where given), writes keys and values into the
        cache, and attends to everything that the step's rows may see there, including this step's tokens.
        Queries and keys come in one tensor so that one call rotates both.
        """
        ...

    def with_last_seen(self, last_seen: torch.Tensor) -> "AttentionPlan":
        """Returns the plan of the same step whose tokens see up to these positions.

        last_seen: [T] int64, contiguous, where the kernels read it: of each token its own position, or a
        later one that its row computes in this step; within a row they do not descend.
        """
        ...


class LatentPlan(Protocol):
    """AttentionPlan for layers of latent attention."""

    def store_and_attend(
        self, query: torch.Tensor, latents: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        """query: [T, H, R + P], as latents are read with; latents: [T, R + P], of this step's tokens. Returns
        [T, H, R], contiguous."""
        ...


def split_heads(qkv: torch.Tensor, num_kv_heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[T, H + 2 K, D] -> views of query [T, H, D], key [T, K, D] and value [T, K, D]."""
    sizes = qkv.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads
    query, key, value = qkv.split_with_sizes(sizes, dim=1)
    return query, key, value


def rotated_heads(
    qkv: torch.Tensor, num_kv_heads: int, rotation: Rotation | None, norms: HeadNorms | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[T, H + 2 K, D] -> query [T, H, D], key [T, K, D] and value [T, K, D], normed and rotated."""
    query, key, value = split_heads(qkv, num_kv_heads)
    if norms is not None:
        query, key = normed_heads(norms[0], query), normed_heads(norms[1], key)
    if rotation is None:
        return query, key, value
    if rotation.queries_only:
        return rotation(query), key, value
    num_heads = query.shape[1]
    query_key = qkv[:, : num_heads + num_kv_heads] if norms is None else torch.cat((query, key), dim=1)
    query, key = rotation(query_key).split_with_sizes((num_heads, num_kv_heads), dim=1)
    return query, key, value


def normed_heads(norm: HeadNorm, heads: torch.Tensor) -> torch.Tensor:
    """[T, N, D] -> [T, N, D], each head normed by itself, or all of them together."""
    return norm(heads.reshape(heads.shape[0], -1, norm.weight.shape[0])).view(heads.shape)


class SeparatePlan(ABC):
    """An AttentionPlan that norms, rotates, stores and attends by separate operations."""

    def store_and_attend(
        self,
        qkv: torch.Tensor,
        cache: LayerCache,
        scoring: Scoring,
        rotation: Rotation | None = None,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        key_cache, value_cache = cache
        query, key, value = rotated_heads(qkv, key_cache.shape[1], rotation, norms)
        self.store(key, value, cache)
        return self.attend(query, cache, scoring)

    @abstractmethod
    def store(self, key: torch.Tensor, value: torch.Tensor, cache: LayerCache) -> None:
        """Writes keys and values, [T, K, D] each, into the cache."""

    @abstractmethod
    def attend(self, query: torch.Tensor, cache: LayerCache, scoring: Scoring) -> torch.Tensor:
        """[T, H, D] -> [T, H, D], over what has been stored in this step, perhaps by another layer."""
