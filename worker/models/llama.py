"""Llama: RMS norms, rotary positions, grouped-query attention, gated feed-forward.

Mistral, Qwen2 and Qwen3 are made of the same parts and differ in what their files say.
"""

from collections.abc import Sequence

import torch

from kernels.cpu.elementwise.row_kernels import RowKernels
from kernels.ops.layers.activation import gated_activation
from worker.attention.block_plan import BlockAttentionPlan
from worker.attention.plan import LayerCache, Rotation
from worker.config.llama import LlamaConfig
from worker.cpu.fused_decoder.program import FEW, DecoderProgram, fits
from worker.layers.attention import Attention
from worker.layers.base import Layer
from worker.layers.embedding import VocabEmbedding
from worker.layers.linear import RowLinear, column_linear, local_kv_heads, qkv_linear
from worker.layers.norm import RMSNorm
from worker.layers.rotary import Rotary
from worker.model_input import InputBatch
from worker.models.base import Family, LanguageModel
from worker.parallel import Placement


class LlamaAttention(Layer):
    """Projections, rotation, attention, projection back."""

    def __init__(self, config: LlamaConfig, layer: int, place: Placement) -> None:
        super().__init__()
        self.num_heads = place.group.split(config.num_heads)
        self.num_kv_heads = local_kv_heads(config.num_kv_heads, place.group.size)
        self.head_dim = config.head_dim
        self.qkv = qkv_linear(
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.qkv_bias,
            place,
        )
        self.output = RowLinear(
            config.num_heads * config.head_dim, config.hidden_size, config.output_bias, place
        )
        self.attention = Attention(self.num_kv_heads, config.head_dim, config.windows[layer])
        self.norms: tuple[RMSNorm, RMSNorm] | None = None  # of each query's head, of each key's

    def forward(
        self, x: torch.Tensor, rotation: Rotation, batch: InputBatch, cache: LayerCache
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        return self.output(self.attention(self.qkv(x), batch, cache, rotation, self.norms))


class LlamaMLP(Layer):
    """down(f(gate(x)) * up(x))."""

    def __init__(self, config: LlamaConfig, place: Placement) -> None:
        super().__init__()
        self.activation = config.activation
        sizes = (config.intermediate_size, config.intermediate_size)
        self.gate_up = column_linear(config.hidden_size, sizes, config.mlp_bias, place)
        self.down = RowLinear(config.intermediate_size, config.hidden_size, config.mlp_bias, place)
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """For the activation, where it is SiLU and the width fits."""
        fits = self.activation in ("silu", "swish") and self.down.weight.shape[1] % 16 == 0
        self.kernels = kernels if fits else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        gate_up = self.gate_up(x)
        if self.kernels is not None:
            return self.down(self.kernels.gated_silu(gate_up))
        return self.down(gated_activation(gate_up, self.activation))


class LlamaBlock(torch.nn.Module):
    """Attention and feed-forward, each behind a norm that also adds to the residual stream."""

    def __init__(self, config: LlamaConfig, attention: LlamaAttention, place: Placement) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps, place)
        self.attention = attention
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps, place)
        self.mlp = LlamaMLP(config, place)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        rotation: Rotation,
        batch: InputBatch,
        cache: LayerCache,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x: what is still to be added to the residual stream. Both [T, E], in and out."""
        x, residual = self.attention_norm.add(x, residual)
        x = self.attention(x, rotation, batch, cache)
        x, residual = self.mlp_norm.add(x, residual)
        return self.mlp(x), residual


class LlamaModel(LanguageModel):
    """Embedding, blocks, norm, head."""

    def __init__(
        self, config: LlamaConfig, place: Placement, attention: type[LlamaAttention] = LlamaAttention
    ) -> None:
        """attention: the kind of it, for families that differ there."""
        super().__init__()
        self.embedding = VocabEmbedding(config.vocab_size, config.hidden_size, place)
        self.rotary = Rotary(config.rope, config.head_dim, place.device)
        self.layers = tuple(
            LlamaBlock(config, attention(config, i, place), place) for i in range(config.num_layers)
        )
        self.blocks = torch.nn.ModuleList(self.layers)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, place)
        self.head = (
            self.embedding if config.tied else VocabEmbedding(config.vocab_size, config.hidden_size, place)
        )
        self.kernels: RowKernels | None = None
        self._fits: bool | None = None  # not looked at yet
        self._programs: dict[bool, DecoderProgram] = {}  # of few tokens, of many

    def use_kernels(self, kernels: RowKernels) -> None:
        """For steps in one call; see worker.cpu.fused_decoder.program."""
        self.kernels = kernels

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """-> [T, E]."""
        rotation = self.rotary.rotation(batch)
        if self.kernels is not None:
            program = self._program_for(self.kernels, batch, caches)
            if program is not None:
                return program.run(rotation, batch)
        x = self.embedding(batch.token_ids)
        residual = torch.zeros_like(x)
        for block, cache in zip(self.layers, caches, strict=True):
            x, residual = block(x, residual, rotation, batch, cache)
        x, _ = self.norm.add(x, residual)
        return x

    def _program_for(
        self, kernels: RowKernels, batch: InputBatch, caches: Sequence[LayerCache]
    ) -> DecoderProgram | None:
        """For this step. None where the model or the cache has what no kernel fits."""
        if self._fits is None:
            self._fits = fits(self)
        plan = next(iter(batch.attention.values()))
        if not self._fits or not isinstance(plan, BlockAttentionPlan):
            return None
        tokens = batch.token_ids.shape[0]
        few = tokens <= FEW
        program = self._programs.get(few)
        if program is None or program.most_tokens < tokens:
            most = FEW if few else 1 << (tokens - 1).bit_length()
            program = self._programs[few] = DecoderProgram(self, kernels, caches, plan.plan, most)
        return program

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] -> [A, V] float32."""
        program = self._programs.get(True)
        logits = program.logits_of(hidden) if program is not None else None
        return self.head.logits(hidden) if logits is None else logits

    def greedy_tokens(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """See worker.cpu.fused_decoder.head."""
        program = self._programs.get(True)
        return program.greedy_tokens(hidden) if program is not None else None


NAMES = {
    "embedding": ("model.embed_tokens",),
    "blocks.{i}.attention_norm": ("model.layers.{i}.input_layernorm",),
    "blocks.{i}.attention.qkv": (
        "model.layers.{i}.self_attn.q_proj",
        "model.layers.{i}.self_attn.k_proj",
        "model.layers.{i}.self_attn.v_proj",
    ),
    "blocks.{i}.attention.output": ("model.layers.{i}.self_attn.o_proj",),
    "blocks.{i}.mlp_norm": ("model.layers.{i}.post_attention_layernorm",),
    "blocks.{i}.mlp.gate_up": ("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj"),
    "blocks.{i}.mlp.down": ("model.layers.{i}.mlp.down_proj",),
    "norm": ("model.norm",),
    "head": ("lm_head",),
}

UNUSED = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|model\.rotary_emb\.inv_freq|lm_head\.weight"
"""Buffers of older checkpoints, and a head that is tied but written out all the same."""


LLAMA = Family(LlamaModel, NAMES, UNUSED)
