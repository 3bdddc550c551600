"""Matrices of a model that a CUDA device holds in 4 or 8 bits: those that their checkpoint stores so, or that
--quantization rounds. A head, an embedding and routers of experts are never held. Matrices of experts are not
rounded.
"""

import logging
from collections.abc import Callable, Mapping

import torch

from kernels.triton.matmul.low_bit_weight import (
    Code,
    empty_low_bits,
    low_bit_bytes,
    padded_rows,
    round_to_int4,
    round_to_int8,
)
from pagewire.errors import StartupError
from worker.layers.base import Weight, WeightSlot
from worker.weights.held_bits import HeldBits
from worker.weights.source import TensorSource
from worker.weights.stored_forms import (
    CodedRows,
    HeldForm,
    HeldWeight,
    group_form,
    no_kernel,
    scaled_form,
)
from worker.weights.stored_rows import StoredRows

logger = logging.getLogger(__name__)


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
        self._rounded = _rounding_form(quantization, place) if quantization else None

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
        form = group_form(stored)
        if isinstance(form, HeldForm) and form.group_size % form.code.least_group:
            return f"groups of {form.group_size} inputs, no multiple of {form.code.least_group}"
        return form

    def _form_of(
        self, slot: WeightSlot, parts: list[Weight], names: Mapping[str, str]
    ) -> HeldForm | str | None:
        if self._rounded is not None:
            return None if slot.weight.dim() == 3 else self._rounded
        form = super()._form_of(slot, parts, names)
        if not isinstance(form, HeldForm) or form.group_size >= slot.inputs:
            return form
        if form.group_size % form.code.least_group:
            return f"groups of {form.group_size} inputs, no multiple of {form.code.least_group}"
        return form

    def _check_memory(self, model: torch.nn.Module, held: list[tuple[WeightSlot, HeldForm]]) -> None:
        places = {id(slot.weight) for slot, _ in held}
        others = [each for each in model.parameters() if id(each) not in places]
        dtype = next((each.dtype for each in others if each.dim() == 2), torch.bfloat16)
        sizes = [low_bit_bytes(_held_shape(slot), form.code, form.group_size) for slot, form in held]
        self._check_bytes(sum(sizes) + sum(each.nbytes for each in others), dtype)

    def _allocate(self, slot: WeightSlot, form: HeldForm) -> HeldWeight:
        weight = empty_low_bits(_held_shape(slot), form.code, form.group_size, self._place, form.order)
        slot.hold_low_bits(weight)
        return weight

    def _placed(self, slot: WeightSlot, rows: StoredRows) -> StoredRows:
        if slot.weight.dim() == 2:
            return rows
        outputs = slot.weight.shape[1]  # each expert is padded to tiles of its own
        places = rows.places // outputs * padded_rows(outputs) + rows.places % outputs
        return StoredRows(rows.first, torch.where(rows.places < 0, -1, places))

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


def _rounding_form(quantization: str, place: torch.device) -> HeldForm:
    """Returns the form that values are rounded to, on the device. quantization: as in Initialize."""
    if quantization == "int8":
        return HeldForm(
            Code.INT8, 1 << 62, rounded=lambda rows: CodedRows(*round_to_int8(rows.to(place)), None)
        )
    assert quantization == "int4-g32"
    return HeldForm(Code.INT4, 32, rounded=lambda rows: CodedRows(*round_to_int4(rows.to(place), 32)))


def _held_shape(slot: WeightSlot) -> tuple[int, int]:
    """Returns the shape of what takes the place of a parameter: experts stand one below the other."""
    *experts, rows, inputs = slot.weight.shape
    return (experts[0] * padded_rows(rows) if experts else rows), inputs
