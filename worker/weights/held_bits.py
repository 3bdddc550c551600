"""Chooses the linear method of each matrix of a model while its checkpoint is loaded, and fills the matrices
that are held in few bits.

    choose_dtype()   before the model is made: can any matrix be held in few bits
    hold()           gives such matrices their method, and memory to all parameters
    fill()           fills what one tensor goes to, a few rows at a time
    log()            says what is held, and what is unpacked and why
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from kernels.api import GroupedWords, LowBitWeight
from pagewire.errors import StartupError
from worker.layers.base import Weight
from worker.layers.matrix import GroupedMethod, LowBitMethod, MatrixOwner, WeightSlot
from worker.parallel import Placement
from worker.weights.loader import PIECE_VALUES, check_finite, fill_target, read_outputs
from worker.weights.source import TensorSource
from worker.weights.stored_forms import HeldForm, StoredRows, rows_to_round, stored_inputs, stored_rows


@dataclass(frozen=True)
class _HeldRows:
    """Where rows of a tensor go."""

    weight: GroupedWords | LowBitWeight
    form: HeldForm
    rows: StoredRows

    def fill(self, checkpoint: TensorSource, weight: Weight, name: str) -> Iterator[int]:
        """Reads all rows, a few at a time. Yields how many."""
        step = max(1, PIECE_VALUES // self.weight.in_features)
        for begin in range(0, len(self.rows.places), step):
            places = self.rows.places[begin : begin + step]
            first = self.rows.first + begin
            wanted = places >= 0
            if self.form.read is None:
                values = read_outputs(checkpoint, weight, name, slice(first, first + len(places)))
                self.round(places[wanted], values[wanted])
            else:
                codes, scales, zeros = self.form.read(first, first + len(places))
                check_finite(scales, checkpoint, name)
                if codes.is_floating_point():
                    check_finite(codes.float(), checkpoint, name)
                if not wanted.all():
                    codes, scales = codes[wanted], scales[wanted]
                    zeros = None if zeros is None else zeros[wanted]
                self.weight.put(places[wanted], codes, scales, zeros)
            yield len(places)

    def round(self, places: torch.Tensor, values: torch.Tensor) -> None:
        """Writes rows [R, K] of floats."""
        assert isinstance(self.weight, LowBitWeight)
        self.weight.put_rounded(places, values)


class HeldBits(ABC):
    """The matrices of one model."""

    needed_dtype = ""
    """Why matrices are not held where activations are float32: what kernels take."""

    def __init__(self, refusal: str = "") -> None:
        """refusal: why no matrix can be held as its checkpoint stores it; empty: some may."""
        self._refusal, self._packing = refusal, ""
        self._kinds: dict[str, str] = {}  # of each packed tensor: its format
        self._forms: dict[str, HeldForm | str] = {}  # of each packed tensor; or why there is none
        self._rows: dict[int, _HeldRows] = {}  # by the id of the Weight
        self._unpacked: dict[str, str] = {}  # path of a layer -> why it is
        self._held: set[str] = set()  # formats and bits of what is held
        self._num_bytes = 0  # of what is held

    @property
    def quantization(self) -> str:
        """Formats and bits of what is held, such as "gptq-int4"; empty where no matrix is."""
        return ", ".join(sorted(self._held))

    def choose_dtype(self, checkpoint: TensorSource | None, wanted: torch.dtype) -> torch.dtype | None:
        """Returns the dtype of activations where matrices are held; None where none is. checkpoint: None:
        weights are random. wanted: the one that is asked for. Raises StartupError."""
        if checkpoint is None:
            return None
        self._packing = checkpoint.packing()
        self._kinds = {name: kind for name in checkpoint.names() if (kind := checkpoint.packing_of(name))}
        forms = {name: self._stored_form(checkpoint, name) for name in self._kinds}
        self._refusal = self._why_none(checkpoint, forms, wanted)
        if self._refusal or not forms:
            return None
        self._forms = forms
        return self._activations(wanted)

    def _why_none(
        self, checkpoint: TensorSource, forms: Mapping[str, HeldForm | str], dtype: torch.dtype
    ) -> str:
        """Returns why no tensor can be held; empty: some can. dtype: of activations."""
        if self._refusal:
            return self._refusal
        if dtype == torch.float32:
            return f"{self.needed_dtype}, and the dtype is float32"
        if forms and all(isinstance(form, str) for form in forms.values()):
            name, reason = next(iter(forms.items()))
            return f"{name}: {reason}"
        return ""

    @abstractmethod
    def _stored_form(self, checkpoint: TensorSource, name: str) -> HeldForm | str:
        """Returns the form that holds a packed tensor exactly, or why there is none."""

    @abstractmethod
    def _activations(self, wanted: torch.dtype) -> torch.dtype:
        """Returns the dtype of activations beside matrices that are held. Raises StartupError."""

    @abstractmethod
    def _allocate(self, shape: tuple[int, ...], form: HeldForm) -> GroupedMethod | LowBitMethod:
        """Returns the method of a matrix, or of those of all experts, with its memory. shape: of the
        parameter."""

    @abstractmethod
    def _label(self, form: HeldForm, kind: str) -> str:
        """Returns what `quantization` says of a matrix. kind: the format of its tensors."""

    def hold(
        self, model: torch.nn.Module, table: list[Weight], names: Mapping[str, str], place: Placement
    ) -> list[Weight]:
        """Gives memory to the matrices of a model that has none for them yet (Placement.later). names: of the
        table's tensors in the checkpoint; empty: there is none. place: of the model. Returns the table of
        what is to be filled. Raises StartupError."""
        if not place.later:
            return table
        by_memory: dict[int, list[Weight]] = {}
        for weight in table:
            by_memory.setdefault(_memory(weight.target), []).append(weight)
        chosen: list[tuple[WeightSlot, HeldForm, list[Weight]]] = []
        for path, module in model.named_modules():
            for slot in module.slots() if isinstance(module, MatrixOwner) else ():
                parts = by_memory.get(_memory(slot.weight), [])
                form = self._form_of(slot, parts, names)
                if isinstance(form, str):
                    self._unpacked[path] = form
                elif form is not None:
                    chosen.append((slot, form, parts))
        self._check_memory(model, [(slot, form) for slot, form, _ in chosen])
        held: dict[int, Weight] = {}
        for slot, form, parts in chosen:
            held |= self._hold(slot, parts, names, form)
        real = _allocate_others(model, replace(place, later=False, capacity=None))
        return [held.get(id(weight)) or _moved(weight, real) for weight in table]

    @abstractmethod
    def _check_memory(self, model: torch.nn.Module, held: list[tuple[WeightSlot, HeldForm]]) -> None:
        """Raises StartupError unless the weights fit."""

    def _form_of(
        self, slot: WeightSlot, parts: list[Weight], names: Mapping[str, str]
    ) -> HeldForm | str | None:
        """Returns the form of a matrix; why there is none; None where nothing of it is packed."""
        forms = [self._stored_part(weight, names) for weight in parts]
        if all(form is None for form in forms):
            return None
        found: list[HeldForm] = []
        for form in forms:
            if not isinstance(form, HeldForm):
                return form or "not all of its parts are packed"
            found.append(form)
        if any(stored_rows(weight, slot.inputs) is None for weight in parts):
            return "its inputs are outputs of the stored weight"
        if slot.weight.dim() == 3 and any(form.order is not None for form in found):
            return "groups of inputs that are no neighbours, which differ between experts"
        if not all(form.has_inputs_of(found[0]) for form in found[1:]):
            return "its parts have different groups of inputs"
        return found[0]

    def _stored_part(self, weight: Weight, names: Mapping[str, str]) -> HeldForm | str | None:
        """Returns the form of the inputs that a tensor gives to a matrix; why there is none; None where it is
        not packed. Raises StartupError where the form is one of all inputs alone: ranks would compute
        with other values than one rank does."""
        form, part = self._forms.get(names[weight.name]), stored_inputs(weight)
        if not isinstance(form, HeldForm) or weight.transposed:
            return form
        held = form.of_inputs(*part)
        if isinstance(held, str):
            raise StartupError("cannot split the model", f"tensor {names[weight.name]} has {held}")
        return held

    def _hold(
        self, slot: WeightSlot, parts: list[Weight], names: Mapping[str, str], form: HeldForm
    ) -> dict[int, Weight]:
        """Returns what stands for each part in the table, by its id."""
        method = self._allocate(tuple(slot.weight.shape), form)
        slot.hold(method)
        self._num_bytes += method.weight.nbytes
        replaced: dict[int, Weight] = {}
        for part in parts:
            own, rows = form, None
            if form.read is None:
                rows = rows_to_round(part, slot.inputs)
            else:
                found = self._stored_part(part, names)
                assert isinstance(found, HeldForm)
                own, rows = found, stored_rows(part, slot.inputs)
                self._held.add(self._label(own, self._kinds[names[part.name]]))
            assert rows is not None
            replaced[id(part)] = moved = replace(part)
            self._rows[id(moved)] = _HeldRows(method.weight, own, rows)
        return replaced

    def fill(self, checkpoint: TensorSource, weight: Weight, name: str) -> Iterator[int]:
        """Fills what a tensor goes to. Yields the bytes of each piece, in the target's dtype."""
        held = self._rows.get(id(weight))
        if held is None:
            yield from fill_target(checkpoint, weight, name)
            return
        for count in held.fill(checkpoint, weight, name):
            yield count * held.weight.in_features * weight.target.itemsize

    def write(self, weight: Weight, tensor: torch.Tensor) -> None:
        """Fills what a weight goes to with the part of a tensor that goes there."""
        held = self._rows.get(id(weight))
        if held is None:
            weight.target.copy_(tensor.t() if weight.transposed else tensor.view(weight.target.shape))
            return
        values = tensor.t() if weight.transposed else tensor
        first = weight.target.storage_offset() // held.weight.in_features
        held.round(first + torch.arange(len(values)), values)

    def log(self, checkpoint: TensorSource, table: list[Weight], dtype: torch.dtype) -> None:
        """Says in one line what becomes of packed weights: a warning where some are unpacked."""
        if not self._packing:
            return
        refusal = self._refusal
        if self._unpacked:
            layer, reason = next(iter(self._unpacked.items()))
            more = f" (and {len(self._unpacked) - 1} more)" if len(self._unpacked) > 1 else ""
            refusal = f"{layer}{more}: {reason}"
        sizes = [weight.target.numel() * dtype.itemsize for weight in table if id(weight) not in self._rows]
        on_disk, in_memory = checkpoint.stored_bytes() / 1e6, (sum(sizes) + self._num_bytes) / 1e6
        memory = f"{on_disk:.0f} MB of the file take {in_memory:.0f} MB of memory"
        self._log(str(dtype).removeprefix("torch."), refusal, memory)

    @abstractmethod
    def _log(self, dtype: str, refusal: str, memory: str) -> None:
        """refusal: why some are unpacked. memory: what weights take."""


def _allocate_others(model: torch.nn.Module, place: Placement) -> dict[int, torch.Tensor]:
    """Gives parameters that have no memory some. Returns them by what they stand for."""
    real: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                key = _memory(parameter)
                if key not in real:
                    real[key] = place.empty(*parameter.shape)
                setattr(module, name, real[key])
    return dict(real)


def _moved(weight: Weight, real: Mapping[int, torch.Tensor]) -> Weight:
    """Returns a weight whose target has memory."""
    target = weight.target
    if not target.is_meta:
        return weight
    parameter = real[_memory(target)]
    offset = parameter.storage_offset() + target.storage_offset()
    return replace(weight, target=parameter.as_strided(target.size(), target.stride(), offset))


def _memory(tensor: torch.Tensor) -> int:
    """Names the storage of a tensor, which views share, also where it has no memory."""
    return int(tensor.untyped_storage()._cdata)
