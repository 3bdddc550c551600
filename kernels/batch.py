"""What a model reads in one step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch

from kernels.attention.kv_cache_spec import AttentionSpec, KVCacheSpec
from kernels.attention.latent import LatentSpec
from kernels.attention.plan import AttentionPlan, LatentPlan
from kernels.ops.attention.ragged import Integers, ranges
from kernels.ops.layers.adapters import StepAdapters
from kernels.ops.sampling.columns import SamplingColumns
from kernels.ops.states.spans import AnySpans
from kernels.wanted import Wanted


@dataclass(frozen=True)
class InputEmbeddings:
    """Values that stand for the embeddings of some tokens, such as those of an image. Their token ids may be
    any of the vocabulary."""

    tokens: torch.Tensor  # [N] int64: index into T, all different
    values: torch.Tensor  # [N, E], of the model's dtype and on its device
    deeper: "DeeperVectors | None" = None


@dataclass(frozen=True)
class DeeperVectors:
    """Vectors that are added to the hidden states of some tokens behind each of a decoder's first layers."""

    tokens: torch.Tensor  # [M] int64: index into T, all different
    values: torch.Tensor  # [M, L, E], of L layers, of the model's dtype and on its device


class SampledBy(NamedTuple):
    """Parameters of rows, by which their tokens are chosen."""

    rows: torch.Tensor  # [T] int64: of the columns, for each token of the step
    columns: SamplingColumns


@dataclass(frozen=True, kw_only=True)
class InputBatch:
    """What the model reads in one step. T: tokens of the step, with padding (only CUDA graphs pad).

    Rows are not in the plan's order: decoding rows come first, shorter ones before longer ones, so that
    attention finds rows of similar length side by side.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64: index of the token in its row
    prompt_lens: torch.Tensor  # [T] int64: prompt tokens of the token's row
    attention: Mapping[KVCacheSpec, Any]
    """An AttentionPlan or LatentPlan per kind of layer; without padding."""
    max_context: int | None = None
    """Positions of the longest row at most, where the host knows a bound that changes rarely: angles of
    rotations may then be looked up."""
    input_embeddings: InputEmbeddings | None = None
    grid_positions: torch.Tensor | None = None
    """[3, T] int64: of time, row and column, by which M-RoPE turns; None: all are `positions`."""
    token_types: torch.Tensor | None = None
    """[T] int64: of models that have them; None: all are 0."""
    adapters: StepAdapters | None = None
    """Of the tokens that have one; None: no token has."""
    logit_adapters: StepAdapters | None = None
    """Of those among logit_tokens that have one, as rows of logits."""
    spans: AnySpans | None = None
    """The rows in the order of their tokens, for layers that keep a state per row; None: there are none."""

    logit_tokens: torch.Tensor | None = None
    """[A] int64: token (index into T) whose logits are sampled from; None: all of them, in order."""
    wanted: Wanted = Wanted.STATES
    """More than STATES where the model may compute it together with its hidden states."""
    sampled_by: SampledBy | None = None
    """What tokens are chosen by; None: the model chooses none."""

    def plan(self, spec: AttentionSpec) -> AttentionPlan:
        """Returns what layers of this kind store and attend by."""
        plan: AttentionPlan = self.attention[spec]
        return plan

    def latent_plan(self, spec: LatentSpec) -> LatentPlan:
        """As plan(), for layers of latent attention."""
        plan: LatentPlan = self.attention[spec]
        return plan

    @property
    def num_logits(self) -> int:
        """Tokens whose logits are wanted."""
        if self.wanted < Wanted.LOGITS:
            return 0
        return len(self.token_ids if self.logit_tokens is None else self.logit_tokens)

    @property
    def deeper(self) -> DeeperVectors | None:
        """What is added behind the first layers."""
        return None if self.input_embeddings is None else self.input_embeddings.deeper

    def deepened(self, x: torch.Tensor, number: int) -> torch.Tensor:
        """Returns what block `number` of a decoder, 1: the first one, adds to the residual stream [T, E],
        with the vectors that are added behind it. Other tokens keep their bits."""
        if (deeper := self.deeper) is None or number > deeper.values.shape[1]:
            return x
        return x.index_copy(0, deeper.tokens, x[deeper.tokens] + deeper.values[:, number - 1])

    def with_embeddings(
        self,
        tokens: torch.Tensor,
        values: torch.Tensor,
        deeper: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> Self:
        """Returns a batch with values in place of some tokens; see InputEmbeddings. deeper: the fields of
        DeeperVectors."""
        added = None if deeper is None else DeeperVectors(*deeper)
        return replace(self, input_embeddings=InputEmbeddings(tokens, values, added))

    def with_last_seen(self, last_seen: torch.Tensor) -> Self:
        """Returns a batch whose tokens see up to these positions [T], in layers of the kinds that see media
        whole; see AttentionPlan."""
        plans = {
            spec: plan.with_last_seen(last_seen) if spec.whole_media else plan
            for spec, plan in self.attention.items()
        }
        return replace(self, attention=plans)


@dataclass(frozen=True, kw_only=True)
class StepBatch(InputBatch):
    """An InputBatch whose rows are sampled from. A: sampled rows."""

    row_starts: Integers  # [R] index into T of each row's first token; in the plan's order

    def with_grid_positions(self, positions: torch.Tensor) -> "StepBatch":
        """Returns a batch whose tokens have these positions [3, T] int64."""
        return replace(self, grid_positions=positions)

    def with_token_types(self, types: torch.Tensor) -> "StepBatch":
        """Returns a batch whose tokens have these types [T] int64."""
        return replace(self, token_types=types)

    def with_all_positions(self, num_logits: Integers) -> "StepBatch":
        """Returns a batch whose rows sample from several of their last positions. num_logits: [A]."""
        if self.logit_tokens is None:
            return self
        last = self.logit_tokens.numpy()
        return replace(self, logit_tokens=torch.from_numpy(ranges(last - num_logits + 1, num_logits)[1]))
