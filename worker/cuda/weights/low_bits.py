"""Matrices of a model that a CUDA device holds in 4 or 8 bits: those that their checkpoint stores so, or that
--quantization rounds.

Matrices are allocated when it is known in which form: those that are held never take the model's dtype. A
head, an embedding and routers of experts are never held. Matrices of experts are not rounded.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch

from kernels.triton.matmul.low_bit_weight import LowBitWeight, empty_low_bits, low_bit_bytes, padded_rows
from pagewire.errors import StartupError
from worker.cuda.weights.low_bit_forms import (
    CodedRows,
    LowBitForm,
    rounding_form,
    rows_to_round,
    stored_form,
)
from worker.layers.base import Weight
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.packed_linear import Matrix
from worker.weights.held_bits import HeldBits
from worker.weights.loader import PIECE_VALUES, check_finite, fill_target, read_finite
from worker.weights.own_bits.stored_rows import StoredRows, stored_rows
from worker.weights.source import TensorSource

logger = logging.getLogger(__name__)
Holder = Matrix | ExpertMatrices


@dataclass(frozen=True)
class LowBitRows:
    """Where rows of a tensor go."""

    weight: LowBitWeight
    form: LowBitForm
    rows: StoredRows

    def put(self, places: torch.Tensor, coded: CodedRows) -> None:
        """Writes some rows. places: of StoredRows, those of the rows."""
        if not (wanted := places >= 0).all():
            chosen = wanted.to(coded.codes.device)
            coded = CodedRows(
                coded.codes[chosen],
                coded.scales[chosen],
                None if coded.zeros is None else coded.zeros[chosen],
            )
        self.weight.put(places[wanted], *coded)


class LowBits(HeldBits):
    """The matrices of one model."""

    allocates = True

    def __init__(
        self,
        quantization: str,
        place: torch.device,
        check_dtype: Callable[[torch.dtype], None],
        check_bytes: Callable[[int, torch.dtype], None],
    ) -> None:
        """quantization: as in Initialize. place: of the weights. check_dtype, check_bytes: of activations and
        of all weights, before anything is allocated; raise StartupError."""
        self.rounds = bool(quantization)
        self._asked, self._place = quantization, place
        self._check_dtype, self._check_bytes = check_dtype, check_bytes
        self._rounded = rounding_form(quantization) if quantization else None
        self._forms: dict[str, LowBitForm | str] = {}  # of each packed tensor; or why there is none
        self._kinds: dict[str, str] = {}  # of each packed tensor: its format
        self._rows: dict[int, LowBitRows] = {}  # by the id of the Weight
        self._unpacked: dict[str, str] = {}  # path of a layer -> why it is
        self._held: set[str] = set()  # formats and codes of what is held
        self._refusal = ""

    @property
    def quantization(self) -> str:
        """What matrices are held in, such as "int4" of --quantization or "gptq-int4"; empty: none is."""
        return self._asked or ", ".join(sorted(self._held))

    def takes(self, checkpoint: TensorSource, dtype: torch.dtype) -> bool:
        if self.rounds:
            return True
        self._kinds = {name: kind for name in checkpoint.names() if (kind := checkpoint.packing_of(name))}
        if not self._kinds:
            return False
        if dtype == torch.float32:
            self._refusal = "kernels for 4 and 8 bits take activations in 16 bits, and the dtype is float32"
            return False
        self._forms = {name: stored_form(checkpoint, name) for name in self._kinds}
        if all(isinstance(form, str) for form in self._forms.values()):
            name, reason = next(iter(self._forms.items()))
            self._refusal = f"{name}: {reason}"
            return False
        return True

    def choose_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype == torch.float32:
            raise StartupError(
                f"cannot quantize the weights to {self._asked}",
                "kernels for 4 and 8 bits take activations in 16 bits, and the dtype is float32",
                "use --dtype bfloat16, or leave --quantization out",
            )
        self._check_dtype(dtype)
        return dtype

    def hold(self, model: torch.nn.Module, table: list[Weight], names: Mapping[str, str]) -> list[Weight]:
        """Allocates everything else, too."""
        by_memory: dict[int, list[Weight]] = {}
        for weight in table:
            by_memory.setdefault(_memory(weight.target), []).append(weight)
        forms: dict[Holder, tuple[LowBitForm, list[Weight]]] = {}
        for path, module in model.named_modules():
            if not _may_hold(module):
                continue
            parts = by_memory.get(_memory(_weight_of(module)), [])
            form = self._form_of(module, parts, names)
            if isinstance(form, str):
                self._unpacked[path] = form
            elif form is not None:
                forms[module] = form, parts
        self._check_bytes(*_planned(model, {matrix: form for matrix, (form, _) in forms.items()}))
        held: dict[int, Weight] = {}
        for matrix, (form, parts) in forms.items():
            held |= self._hold(matrix, parts, names, form)
        real = _allocate(model, self._place)
        return [held.get(id(weight)) or _moved(weight, real) for weight in table]

    def _form_of(
        self, matrix: Holder, parts: list[Weight], names: Mapping[str, str]
    ) -> LowBitForm | str | None:
        """Returns the form of a matrix; why there is none; None where nothing of it is packed."""
        inputs, of_experts = _weight_of(matrix).shape[-1], isinstance(matrix, ExpertMatrices)
        if self._rounded is not None:
            return None if of_experts else self._rounded
        forms = [self._forms.get(names[weight.name]) for weight in parts]
        if all(form is None for form in forms):
            return None
        found: list[LowBitForm] = []
        for form in forms:
            if not isinstance(form, LowBitForm):
                return form or "not all of its parts are packed"
            found.append(form)
        if any(stored_rows(weight, inputs) is None for weight in parts):
            return "its inputs are outputs of the stored weight"
        if of_experts and any(form.order is not None for form in found):
            return "groups of inputs that are no neighbours, which differ between experts"
        if not all(form.has_inputs_of(found[0]) for form in found[1:]):
            return "its parts have different groups of inputs"
        if found[0].group_size % found[0].code.least_group and found[0].group_size < inputs:
            return f"groups of {found[0].group_size} inputs, no multiple of {found[0].code.least_group}"
        return found[0]

    def _hold(
        self, matrix: Holder, parts: list[Weight], names: Mapping[str, str], form: LowBitForm
    ) -> dict[int, Weight]:
        """Returns what stands for each part in the table, by its id."""
        rows, inputs = _held_shape(matrix)
        weight = empty_low_bits((rows, inputs), form.code, form.group_size, self._place, form.order)
        matrix.hold_low_bits(weight)
        replaced = {}
        for part in parts:
            own, stored = form, stored_rows(part, inputs)
            if self._rounded is not None:
                stored = rows_to_round(part, inputs)
            else:
                found = self._forms[names[part.name]]
                assert isinstance(found, LowBitForm)
                own = found
                self._held.add(f"{self._kinds[names[part.name]]}-{own.code.name.lower()}")
            assert stored is not None
            if isinstance(matrix, ExpertMatrices):
                stored = _padded(stored, matrix.out_features)
            replaced[id(part)] = moved = replace(part)
            self._rows[id(moved)] = LowBitRows(weight, own, stored)
        return replaced

    def fill(self, checkpoint: TensorSource, weight: Weight, name: str) -> Iterator[int]:
        held = self._rows.get(id(weight))
        if held is None:
            yield from fill_target(checkpoint, weight, name)
            return
        first, places = held.rows.first, held.rows.places
        step = max(1, PIECE_VALUES // held.weight.in_features)
        for begin in range(0, len(places), step):
            where = places[begin : begin + step]
            rows = slice(first + begin, first + begin + len(where))
            held.put(where, self._read(checkpoint, weight, name, rows, held.form))
            yield len(where) * held.weight.in_features * weight.target.itemsize

    def _read(
        self, checkpoint: TensorSource, weight: Weight, name: str, rows: slice, form: LowBitForm
    ) -> CodedRows:
        """Reads some rows, and rounds them where that is asked for, on the device."""
        if form.read is not None:
            coded = form.read(rows.start, rows.stop)
            check_finite(coded.scales, checkpoint, name)
            if form.code.name == "E4M3":
                check_finite(coded.codes.float(), checkpoint, name)
            return coded
        assert form.rounded is not None
        if weight.transposed:
            columns = weight.part[0] if weight.part else slice(None)
            values = read_finite(checkpoint, name, (columns, rows)).t()
        else:
            values = read_finite(checkpoint, name, (rows, *weight.part[1:]))
        return form.rounded(values.to(self._place))

    def write(self, weight: Weight, tensor: torch.Tensor) -> None:
        held = self._rows.get(id(weight))
        if held is None or held.form.rounded is None:
            super().write(weight, tensor)
            return
        values = tensor.t() if weight.transposed else tensor
        first = weight.target.storage_offset() // held.weight.in_features
        held.put(first + torch.arange(len(values)), held.form.rounded(values))

    def log(self, checkpoint: TensorSource, table: list[Weight], dtype: torch.dtype) -> None:
        packing, name = checkpoint.packing(), str(dtype).removeprefix("torch.")
        if not packing:
            return
        if self.rounds:
            logger.warning("weights in %s are unpacked and rounded to %s", packing, self._asked)
            return
        if self._rows and not self._unpacked:
            logger.info("weights in %s are held as they are: %s", packing, self.quantization)
            return
        refusal = self._refusal
        if self._unpacked:
            layer, reason = next(iter(self._unpacked.items()))
            more = f" (and {len(self._unpacked) - 1} more)" if len(self._unpacked) > 1 else ""
            refusal = f"{layer}{more}: {reason}"
        held = "held as they are, but some are " if self._rows else ""
        logger.warning("weights in %s are %sunpacked to %s: %s", packing, held, name, refusal)


def _may_hold(module: torch.nn.Module) -> TypeGuard[Holder]:
    """Whether a layer's weight may be held in few bits."""
    if isinstance(module, ExpertMatrices):
        return module.on_device
    return isinstance(module, Matrix) and module.holds_words and not module.is_table


def _weight_of(matrix: Holder) -> torch.Tensor:
    """Returns the parameter whose place is taken: [N, K], or of experts [experts, N, K]."""
    if isinstance(matrix, ExpertMatrices):
        assert matrix.stacked is not None
        return matrix.stacked
    return matrix.weight


def _held_shape(matrix: Holder) -> tuple[int, int]:
    """Returns the shape of the weight that takes its place: experts stand one below the other."""
    if isinstance(matrix, ExpertMatrices):
        return matrix.num_experts * padded_rows(matrix.out_features), matrix.in_part.held
    rows, inputs = matrix.weight.shape
    return rows, inputs


def _padded(stored: StoredRows, features: int) -> StoredRows:
    """Returns where rows go if each expert, of so many, is padded to tiles of its own."""
    places = stored.places // features * padded_rows(features) + stored.places % features
    return StoredRows(stored.first, torch.where(stored.places < 0, -1, places))


def _planned(model: torch.nn.Module, forms: Mapping[Holder, LowBitForm]) -> tuple[int, torch.dtype]:
    """Returns the bytes of all weights, and the dtype of those that are not held."""
    held = {id(_weight_of(matrix)) for matrix in forms}
    bytes_of = [low_bit_bytes(_held_shape(each), form.code, form.group_size) for each, form in forms.items()]
    others = [each for each in model.parameters() if id(each) not in held]
    dtype = next((each.dtype for each in others if each.dim() == 2), torch.bfloat16)
    return sum(bytes_of) + sum(each.nbytes for each in others), dtype


def _allocate(model: torch.nn.Module, place: torch.device) -> dict[int, torch.Tensor]:
    """Gives parameters that have no memory some. Returns them by what they stand for."""
    real: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                key = _memory(parameter)
                if key not in real:
                    empty = torch.empty_like(parameter, device=place)
                    real[key] = torch.nn.Parameter(empty, requires_grad=False)
                setattr(module, name, real[key])
    return dict(real)


def _moved(weight: Weight, real: Mapping[int, torch.Tensor]) -> Weight:
    """Returns a weight whose target has memory."""
    target = weight.target
    if not target.is_meta:
        return weight
    place = target.size(), target.stride(), target.storage_offset()
    return replace(weight, target=real[_memory(target)].as_strided(*place))


def _memory(tensor: torch.Tensor) -> int:
    """Names the storage of a tensor, which views share, also where it has no memory."""
    return int(tensor.untyped_storage()._cdata)
