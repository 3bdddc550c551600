"""Matrices of a model that a CUDA device holds in 4 or 8 bits: those that their checkpoint stores so, or that
--quantization rounds. A head, an embedding and routers of experts are never held. Matrices of experts are not
rounded.
"""

import logging
from collections.abc import Callable, Mapping

import torch

from kernels.api import Code, LowBitWeight
from pagewire.errors import StartupError
from worker.layers.base import Weight
from worker.layers.matrix import LowBitMethod, WeightSlot
from worker.weights.held_bits import HeldBits
from worker.weights.source import TensorSource
from worker.weights.stored_forms import HeldForm, group_form, no_kernel, scaled_form

logger = logging.getLogger(__name__)
_ROUNDED = {"int8": HeldForm(Code.INT8, 1 << 62), "int4-g32": HeldForm(Code.INT4, 32)}
"""The forms of --quantization."""


class LowBits(HeldBits):
    """The matrices of one model."""

    needed_dtype = "kernels for 4 and 8 bits take activations in 16 bits"

    def __init__(
        self,
        quantization: str,
        place: torch.device,
        check_dtype: Callable[[torch.dtype], None],
        check_bytes: Callable[[int, torch.dtype], None],
    ) -> None:
        """quantization: as in Initialize. place: of the weights. check_dtype, check_bytes: of activations and
        of all weights, before anything is allocated; raise StartupError."""
        super().__init__()
        self._asked, self._place = quantization, place
        self._check_dtype, self._check_bytes = check_dtype, check_bytes
        self._rounded = _ROUNDED[quantization] if quantization else None

    @property
    def quantization(self) -> str:
        return self._asked or super().quantization

    def choose_dtype(self, checkpoint: TensorSource | None, wanted: torch.dtype) -> torch.dtype | None:
        if self._rounded is None:
            return super().choose_dtype(checkpoint, wanted)
        self._packing = "" if checkpoint is None else checkpoint.packing()
        return self._activations(wanted)

    def _activations(self, wanted: torch.dtype) -> torch.dtype:
        if wanted == torch.float32:
            raise StartupError(
                f"cannot quantize the weights to {self._asked}",
                f"{self.needed_dtype}, and the dtype is float32",
                "use --dtype bfloat16, or leave --quantization out",
            )
        self._check_dtype(wanted)
        return wanted

    def _stored_form(self, checkpoint: TensorSource, name: str) -> HeldForm | str:
        stored = checkpoint.grouped(name)
        if stored is None:
            return scaled_form(checkpoint, name) or no_kernel(checkpoint, name)
        return _with_whole_groups(group_form(stored))

    def _form_of(
        self, slot: WeightSlot, parts: list[Weight], names: Mapping[str, str]
    ) -> HeldForm | str | None:
        if self._rounded is not None:
            return None if slot.weight.dim() == 3 else self._rounded
        form = super()._form_of(slot, parts, names)
        if isinstance(form, HeldForm) and form.group_size < slot.inputs:
            return _with_whole_groups(form)
        return form

    def _check_memory(self, model: torch.nn.Module, held: list[tuple[WeightSlot, HeldForm]]) -> None:
        places = {id(slot.weight) for slot, _ in held}
        others = [each for each in model.parameters() if id(each) not in places]
        dtype = next((each.dtype for each in others if each.dim() == 2), torch.bfloat16)
        meta = torch.device("meta")
        sizes = [
            LowBitWeight.empty(tuple(slot.weight.shape), form.code, form.group_size, meta).nbytes
            for slot, form in held
        ]
        self._check_bytes(sum(sizes) + sum(each.nbytes for each in others), dtype)

    def _allocate(self, shape: tuple[int, ...], form: HeldForm) -> LowBitMethod:
        return LowBitMethod(LowBitWeight.empty(shape, form.code, form.group_size, self._place, form.order))

    def _label(self, form: HeldForm, kind: str) -> str:
        return f"{kind}-{form.code.name.lower()}"

    def _log(self, dtype: str, refusal: str, memory: str) -> None:
        packing = self._packing
        if self._asked:
            logger.warning("weights in %s are unpacked and rounded to %s", packing, self._asked)
        elif self._rows and not self._unpacked:
            logger.info("weights in %s are held as they are: %s", packing, self.quantization)
        else:
            held = "held as they are, but some are " if self._rows else ""
            logger.warning("weights in %s are %sunpacked to %s: %s", packing, held, dtype, refusal)


def _with_whole_groups(form: HeldForm | str) -> HeldForm | str:
    """Returns the form, or why no kernel of a CUDA device has its groups."""
    if isinstance(form, HeldForm) and form.group_size % form.code.least_group:
        return f"groups of {form.group_size} inputs, no multiple of {form.code.least_group}"
    return form
