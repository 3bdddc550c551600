"""The matrices of a model on a CPU that keep the integers of their checkpoint, or its floats of 4 bits."""

import logging
from collections.abc import Mapping

import torch

from kernels.cpu.matmul.groups.weight import empty_words
from kernels.cpu.runtime.arena import Arena
from kernels.triton.matmul.low_bit_weight import Code
from worker.layers.base import WeightSlot
from worker.weights.held_bits import HeldBits
from worker.weights.source import TensorSource
from worker.weights.stored_forms import BITS, HeldForm, HeldWeight, group_form, no_kernel

logger = logging.getLogger(__name__)


class OwnBits(HeldBits):
    """The matrices of one model. Activations are bfloat16 where any is held."""

    needed_dtype = "kernels for 4 bits take activations in bfloat16"

    def __init__(self, refusal: str = "", arena: Arena | None = None) -> None:
        """refusal: as in HeldBits. arena: of the model."""
        super().__init__(refusal)
        self._arena = arena

    def _why_none(
        self, checkpoint: TensorSource, forms: Mapping[str, HeldForm | str], dtype: torch.dtype
    ) -> str:
        in_groups = {name: forms[name] for name in forms if checkpoint.grouped(name) is not None}
        if not in_groups:
            return "no kernel computes with them as they are"
        return super()._why_none(checkpoint, in_groups, dtype)

    def _stored_form(self, checkpoint: TensorSource, name: str) -> HeldForm | str:
        stored = checkpoint.grouped(name)
        return no_kernel(checkpoint, name) if stored is None else group_form(stored)

    def _activations(self, wanted: torch.dtype) -> torch.dtype:
        return torch.bfloat16

    def _check_memory(self, model: torch.nn.Module, held: list[tuple[WeightSlot, HeldForm]]) -> None:
        """Leaves it to the system."""

    def _allocate(self, slot: WeightSlot, form: HeldForm) -> HeldWeight:
        rows, inputs = slot.weight.shape
        e2m1 = form.code is Code.E2M1
        words = empty_words((rows, inputs), form.group_size, form.groups, form.order, self._arena, e2m1)
        slot.hold(words)
        return words

    def _label(self, form: HeldForm, kind: str) -> str:
        return kind if form.code is Code.E2M1 else f"{kind}-int{form.bits}"

    def _log(self, dtype: str, refusal: str, memory: str) -> None:
        packing = self._packing
        if not self._rows:
            logger.warning("weights in %s are unpacked to %s: %s; %s", packing, dtype, memory, refusal)
        elif self._unpacked:
            text = "weights in %s keep their integers, but some are unpacked to %s: %s; %s"
            logger.warning(text, packing, dtype, memory, refusal)
        else:
            logger.info("weights in %s keep their integers, in %d bits: %s", packing, BITS, memory)
