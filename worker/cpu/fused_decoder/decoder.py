"""A decoder whose steps are one native call each, beside the layered model that is its reference.

The layers have written their operations down in one program (worker.lowering); a step fills in how many
tokens it has and where its inputs and plans are. The results have the same bits as those of the layers'
forward(). There are two programs: steps of few tokens also compute logits, and choose greedy tokens
(head.py); the other one is made anew for a longer step, with powers of two so that few are made.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.elementwise.row_kernels import RowKernels
from worker.attention.plan import LayerCache
from worker.attention.row_state import RowStateSpec
from worker.cpu.fused_decoder.head import FusedHead
from worker.layers.base import Layer
from worker.lowering.buffers import FEW
from worker.lowering.builder import ProgramBuilder
from worker.lowering.program import LoweredProgram
from worker.model_input import InputBatch
from worker.models.base import LanguageModel
from worker.models.decoder import Decoder

logger = logging.getLogger(__name__)


def fuse(model: LanguageModel, rows: RowKernels | None, blocks: BlockKernels | None) -> LanguageModel:
    """Returns a FusedDecoder, or the model itself where that cannot be lowered. rows, blocks: None where the
    compiled kernels are not used."""
    if rows is None or blocks is None or not isinstance(model, Decoder):
        return model
    if not model.can_lower:
        logger.info("steps are computed layer by layer: %s cannot be lowered", unlowered_part(model))
        return model
    return FusedDecoder(model, rows, blocks)


def unlowered_part(model: Decoder) -> str:
    """Returns the path and the class of the first innermost layer that cannot be lowered."""
    for path, part in model.named_modules():
        if isinstance(part, Layer) and not part.can_lower:
            inner = (layer for layer in part.modules() if layer is not part and isinstance(layer, Layer))
            if all(layer.can_lower for layer in inner):
                return f"{path} ({type(part).__name__})" if path else type(part).__name__
    raise AssertionError("every layer can be lowered")


@dataclass(slots=True)
class _LastStep:
    """What forward() returned last. Not an attribute of the model: torch looks at all that is set there, for
    ten microseconds of a step."""

    hidden: torch.Tensor  # [T, E]
    few: bool  # whether the step was one of few tokens


class FusedDecoder(LanguageModel):
    """Runs a Decoder whose can_lower is true, on one cache."""

    def __init__(self, model: Decoder, rows: RowKernels, blocks: BlockKernels) -> None:
        super().__init__()
        self.model, self._rows, self._blocks = model, rows, blocks
        self.programs: dict[bool, LoweredProgram] = {}  # for steps of few tokens: True, and of many
        self._head: FusedHead | None = None
        self._last = _LastStep(torch.empty(0), False)
        self._captures: dict[bool, Sequence[torch.Tensor]] = {}  # of each program: buffers [M, E]

    def forward(self, batch: InputBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """The next step overwrites the result."""
        tokens = len(batch.token_ids)
        few = tokens <= FEW
        program = self.programs.get(few)
        if program is None or program.most_tokens < tokens:
            program = self.programs[few] = self._lower(
                FEW if few else 1 << (tokens - 1).bit_length(), batch, caches
            )
        program.run(batch)
        hidden = program.first_rows(tokens)
        self._last.hidden, self._last.few = hidden, few
        return hidden

    @property
    def captured(self) -> Sequence[torch.Tensor]:
        return [buffer[: len(self._last.hidden)] for buffer in self._captures[self._last.few]]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] -> [A, V] float32, which the next step overwrites if it comes from the program."""
        head = self._head_of(hidden)
        return self.model.logits(hidden) if head is None or head.logits is None else head.logits

    def greedy_tokens(self, hidden: torch.Tensor) -> torch.Tensor | None:
        head = self._head_of(hidden)
        return None if head is None else head.tokens

    @property
    def logits_of_program(self) -> torch.Tensor | None:
        """[T, V] float32, where the last step has computed them and the next one of its shape will; None: it
        has not."""
        return self._head.logits if self._last.few and self._head is not None else None

    def fixed_program(self, batch: InputBatch) -> LoweredProgram | None:
        """Returns the program of the last step if it may run again as it is, after numbers in the tensors of
        the batch have changed, which was the last one; None: something is to be written before."""
        program = self.programs.get(self._last.few)
        return program if program is not None and program.is_fixed(batch) else None

    def _head_of(self, hidden: torch.Tensor) -> FusedHead | None:
        """The head, if `hidden` is all that the last step computed, and it was one of few tokens."""
        return self._head if self._last.few and hidden is self._last.hidden else None

    def _lower(self, most_tokens: int, batch: InputBatch, caches: Sequence[LayerCache]) -> LoweredProgram:
        builder = ProgramBuilder(self._rows, self._blocks, most_tokens)
        few = most_tokens <= FEW
        if few:
            stateful = [isinstance(specs[0], RowStateSpec) for specs in self.model.layer_specs()]
            builder.prefetch(self.model.kv_cache_specs(), caches[stateful.index(False)], batch)
        hidden = self.model.lower(builder, caches)
        self._captures[few] = self.model.captured
        if not few:
            return builder.build(hidden)
        first = builder.next_index
        logits = self.model.lower_logits(builder, hidden)
        self._head = None if logits is None else FusedHead(builder, logits, first)
        return builder.build(hidden)
