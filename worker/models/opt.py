"""OPT: a Transformer with projections where the embedding is narrower than the hidden states."""

import torch

from kernels.api import InputBatch, adapters
from worker.config.opt import OPTConfig
from worker.layers.linear import RowLinear
from worker.models.transformer import Transformer
from worker.parallel import Groups, Placement


class OPTModel(Transformer):
    """A Transformer whose embedding is projected in, and whose hidden states are projected out."""

    def __init__(self, config: OPTConfig, place: Placement) -> None:
        super().__init__(config, place)
        narrow, wide = config.embedding_size, config.hidden_size
        # The projections between the two widths are small: every rank of stage 0 computes them whole.
        whole = place.whole.held(place.stage.is_first)
        self.project_in = RowLinear(narrow, wide, False, whole, units=1) if narrow != wide else None
        self.project_out = RowLinear(wide, narrow, False, whole, units=1) if narrow != wide else None
        if self.project_out is not None:
            self.project_out.takes_adapters = False  # it computes logits, which do not see the step

    def keep(self, groups: Groups, width: int, dtype: torch.dtype) -> None:
        super().keep(groups, width, dtype)
        if not self.stage.is_first:
            self.project_in = self.project_out = None

    def token_vectors(self, batch: InputBatch) -> torch.Tensor:
        x = super().token_vectors(batch)
        return x if self.project_in is None else self.project_in(x, batch)

    def logits(self, hidden: torch.Tensor, adapters: adapters.StepAdapters | None = None) -> torch.Tensor:
        if self.project_out is not None:
            hidden = self.project_out.product(hidden)
        return super().logits(hidden, adapters)
