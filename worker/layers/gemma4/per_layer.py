"""Per-layer embeddings: a small vector of each token for each layer, made once per step.

    inputs[t, l] = (table[id of t, l] * sqrt(P) + norm((W @ x[t] / sqrt(E))[l])) / sqrt(2)
    layer l:  x + norm(projection(gelu(gate(x)) * inputs[:, l]))

x[t] [E] is the token's embedding; table [V', L * P], W [L * P, E].
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from kernels.api import InputBatch
from worker.layers.base import Layer, Weight, WeightOwner
from worker.layers.linear import RowLinear
from worker.layers.mlp.gated_activation import GatedActivation
from worker.layers.norm import RMSNorm
from worker.parallel import Placement


class StoredTensor(WeightOwner):
    """One tensor of the checkpoint as it stands."""

    def __init__(self, shape: tuple[int, ...], place: Placement) -> None:
        super().__init__()
        self.weight = place.empty(*shape)

    def weights(self, *names: str) -> Iterator[Weight]:
        """The name of the tensor."""
        (name,) = names
        yield Weight(name, tuple(self.weight.shape), self.weight)


class PerLayerInputs(Layer):
    """The vectors of all layers."""

    def __init__(
        self, sizes: tuple[int, int, int], hidden_size: int, norm_eps: float, place: Placement
    ) -> None:
        """sizes: V', layers, P."""
        super().__init__()
        vocab_size, self.num_layers, self.width = sizes
        self.table = StoredTensor((vocab_size, self.num_layers * self.width), place)
        self.projection = RowLinear(hidden_size, self.num_layers * self.width, False, place)
        self.norm = RMSNorm(self.width, norm_eps, place)
        self._table_scale = torch.tensor(self.width**0.5, dtype=place.dtype).item()
        self._projection_scale = hidden_size**-0.5

    def forward(self, embedded: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """embedded: [T, E], the input of the first block -> [T, L, P]."""
        looked_up = F.embedding(batch.token_ids, self.table.weight) * self._table_scale
        projected = self.projection(embedded, batch) * self._projection_scale
        normed = self.norm(projected.view(len(embedded), self.num_layers, self.width))
        return (normed + looked_up.view(normed.shape)) * 2**-0.5


class PerLayerPart(Layer):
    """What one layer adds to the residual stream."""

    def __init__(
        self, gate: RowLinear, activation: GatedActivation, projection: RowLinear, norm: RMSNorm
    ) -> None:
        """gate: [T, E] -> [T, P]. projection: [T, P] -> [T, E]."""
        super().__init__()
        self.gate, self.activation, self.projection, self.norm = gate, activation, projection, norm

    def forward(self, x: torch.Tensor, inputs: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E], [T, P] -> [T, E]."""
        gated = self.activation(torch.cat((self.gate(x, batch), inputs), dim=1))
        return self.norm(self.projection(gated, batch))
