"""Models of which a rank may have some consecutive layers alone: a stage of a pipeline."""

from collections.abc import Sequence

import torch

from worker.layers.attention.rotary import Angles
from worker.layers.base import Layer
from worker.layers.block import CapturedStates
from worker.layers.embedding import VocabEmbedding
from worker.layers.handover import Handover
from worker.layers.norm import Norm
from worker.models.base import LanguageModel
from worker.parallel import ONE_STAGE, Groups, ParallelGroup


class StagedModel(LanguageModel):
    """A LanguageModel whose stages hand on hidden states, and those that are captured on the way."""

    norm: Norm | None
    """The last one; None: another stage has it, or the model has none."""
    layers: tuple[Layer, ...]
    """Those of this stage."""
    blocks: torch.nn.ModuleList
    """The same, and in place of those of other stages layers without parameters: numbers are in names."""
    rotary_of: tuple[Angles | None, ...]
    """By layer, one object for all that rotate alike; None: positions change nothing there."""
    rotaries: torch.nn.ModuleList

    def hold(
        self,
        layers: Sequence[Layer],
        rotaries: Sequence[Angles | None],
        norm: Norm | None,
        head: VocabEmbedding,
    ) -> None:
        """Takes all layers of the model, and what is around them."""
        self.rotary_of = tuple(rotaries)
        self.rotaries = torch.nn.ModuleList(self._distinct_rotaries())
        self.layers, self.blocks = tuple(layers), torch.nn.ModuleList(layers)
        self.norm, self.head = norm, head
        self.capturing: CapturedStates | None = None
        self._residual_scale = 1.0 if norm is None else norm.residual_scale
        self.stage = ONE_STAGE
        self.handover: Handover | None = None
        self.world: ParallelGroup = head.group
        """The ranks that rank 0 tells its tokens."""
        self.tensor: ParallelGroup = head.group
        """The ranks that share its layers."""

    def keep(self, groups: Groups, width: int, dtype: torch.dtype) -> None:
        """Forgets what other stages have. Call it when the names of all weights are known, and before these
        are loaded. width, dtype: of the hidden states."""
        stage = self.stage = groups.stage
        self.handover = Handover(stage, width, dtype)
        self.world, self.tensor, self.gets_tokens = groups.world, groups.tensor, not stage.is_first
        for number in range(len(self.layers)):
            if not stage.has(number):
                self.blocks[number] = Layer()
        self.layers, self.rotary_of = self.layers[stage.layers], self.rotary_of[stage.layers]
        self.rotaries = torch.nn.ModuleList(self._distinct_rotaries())
        if not stage.is_first:
            del self.embedding, self.head
        if not stage.is_last:
            self.norm = None

    @property
    def looked_up(self) -> Layer | None:
        return super().looked_up if self.stage.is_first else None

    @property
    def first_layer(self) -> int:
        """The number of the first one of this stage."""
        return self.stage.layers.start or 0

    def capture(self, after: Sequence[int]) -> None:
        """Has each step copy its hidden states behind so many blocks, see `captured`. Call it before
        kernels are chosen."""
        self.capturing = CapturedStates(after, self._residual_scale)
        if self.handover is not None:
            self.handover.capturing = self.capturing

    @property
    def captured(self) -> Sequence[torch.Tensor]:
        """Those of the step, at stage 0; of a program that was recorded last, its buffers [M, E]."""
        return () if self.capturing is None or not self.stage.is_first else self.capturing.states

    def _distinct_rotaries(self) -> list[Angles]:
        return [rotary for rotary in dict.fromkeys(self.rotary_of) if rotary is not None]
