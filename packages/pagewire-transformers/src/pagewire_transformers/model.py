"""A model of `transformers` as a LanguageModel: all rows of a step in one call, [1, T], on our KV cache."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernels.api import InputBatch, LayerCache, adapters
from pagewire_transformers.probe import LayerShape
from worker.layers.attention.self_attention import Attention
from worker.layers.base import Layer
from worker.models.base import LanguageModel


class StepAttention:
    """A Router that stores and attends for the layers of one model in the step that it was given."""

    def __init__(self, layers: Sequence[Attention], shapes: Sequence[LayerShape]) -> None:
        self._layers, self._shapes = layers, shapes
        self._step: tuple[InputBatch, Sequence[LayerCache]]

    def begin(self, batch: InputBatch, caches: Sequence[LayerCache]) -> None:
        """Attends for this step from now on."""
        self._step = batch, caches

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Values that are narrower than keys are stored with zeros behind them."""
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        shape, (batch, caches) = self._shapes[layer], self._step
        heads, kv_heads, width = shape.num_heads, shape.num_kv_heads, shape.value_dim
        # [1, N, T, D] each -> [T, H + 2 K, D]
        qkv = query.new_zeros((query.shape[2], heads + 2 * kv_heads, shape.head_dim))
        qkv[:, :heads] = query[0].transpose(0, 1)
        qkv[:, heads : heads + kv_heads] = key[0].transpose(0, 1)
        qkv[:, heads + kv_heads :, :width] = value[0].transpose(0, 1)
        attended = self._layers[layer](qkv.flatten(1), batch, caches[layer])
        return attended.view(1, -1, heads, shape.head_dim)[..., :width].contiguous()


class Given:
    """Hidden states as the code of a head takes them: `out[0]`, or `out.last_hidden_state`. Nothing else of
    what models return is there."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class Trunk(torch.nn.Module):
    """Takes the place of a model without its head, and can give hidden states that were computed before: the
    code around it makes logits of them, with whatever it does to logits."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.given: torch.Tensor | None = None  # [1, A, E]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model without its head."""
        if self.given is None:
            return self.inner(*args, **kwargs)
        return Given(self.given)


class TransformersModel(LanguageModel):
    """A causal language model of transformers."""

    def __init__(self, causal: Any, shapes: Sequence[LayerShape]) -> None:
        """causal: computes with interface.SERVING. shapes: of its attention layers, found by the probe."""
        super().__init__()
        self.causal = causal
        self.trunk = Trunk(getattr(causal, causal.base_model_prefix))
        setattr(causal, causal.base_model_prefix, self.trunk)
        self.attentions = torch.nn.ModuleList(
            Attention(
                each.num_heads, each.num_kv_heads, each.head_dim, each.window, each.scale, each.soft_cap
            )
            for each in shapes
        )
        layers = [layer for layer in self.attentions if isinstance(layer, Attention)]
        self._router = StepAttention(layers, shapes)
        for module in causal.modules():
            module.pagewire_router = self._router

    @property
    def looked_up(self) -> Layer | None:
        return None

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        self._router.begin(batch, caches)
        out = self.trunk.inner(
            input_ids=batch.token_ids[None], position_ids=batch.positions[None], use_cache=False
        )
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor, adapters: adapters.StepAdapters | None = None) -> torch.Tensor:
        self.trunk.given = hidden[None]
        try:
            ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
            logits: torch.Tensor = self.causal(input_ids=ids, use_cache=False).logits[0]
        finally:
            self.trunk.given = None
        return logits.float()
