"""Decides which matrices of a model keep the integers of their checkpoint, and fills them.

    takes()    before the model is made: can any, in which dtype
    hold()     words take the place of the parameters, which are never filled
    fill()     the words of one tensor, a few rows at a time

What cannot is unpacked as ever, and one line of the log says what and why.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from kernels.cpu.matmul.groups.words import GroupedWords, empty_words
from kernels.cpu.runtime.arena import Arena
from worker.layers.base import Weight, WeightOwner, WeightSlot
from worker.weights.held_bits import HeldBits
from worker.weights.loader import PIECE_VALUES, check_finite, fill_target
from worker.weights.own_bits.group_form import BITS, GroupForm, group_form
from worker.weights.own_bits.stored_rows import StoredRows, stored_rows
from worker.weights.source import TensorSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldRows:
    """Where rows of a tensor go."""

    words: GroupedWords
    form: GroupForm
    rows: StoredRows


class OwnBits(HeldBits):
    """The matrices of one model that keep their integers."""

    def __init__(self, refusal: str = "", arena: Arena | None = None) -> None:
        """refusal: why no matrix can; empty: some may. arena: of the model."""
        self._refusal, self._arena = refusal, arena
        self._forms: dict[str, GroupForm | str] = {}  # of each packed tensor; or why there is none
        self._rows: dict[int, HeldRows] = {}  # by the id of the Weight
        self._unpacked: dict[str, str] = {}  # path of a layer -> why it is
        self._kinds: dict[str, str] = {}  # of each packed tensor: its format
        self._held: set[str] = set()  # formats and bits of what is held
        self._num_bytes = 0
        self._packing = ""  # formats of the checkpoint

    @property
    def quantization(self) -> str:
        """Formats and bits of integers, such as "gptq-int4", and formats alone of floats; empty where no
        matrix is held."""
        return ", ".join(sorted(self._held))

    def takes(self, checkpoint: TensorSource, dtype: torch.dtype) -> bool:
        """True if matrices of a checkpoint may be held. dtype: that of activations, unless this is True: then
        it is bfloat16."""
        self._packing = checkpoint.packing()
        self._kinds = {name: kind for name in checkpoint.names() if (kind := checkpoint.packing_of(name))}
        stored = {name: of for name in self._kinds if (of := checkpoint.grouped(name)) is not None}
        if not stored:
            self._refusal = "no kernel computes with them as they are"
        elif not self._refusal and dtype == torch.float32:
            self._refusal = "kernels for 4 bits take activations in bfloat16, and the dtype is float32"
        if self._refusal:
            return False
        forms = {name: group_form(of) for name, of in stored.items()}
        if all(isinstance(form, str) for form in forms.values()):
            name, reason = next(iter(forms.items()))
            self._refusal = f"{name}: {reason}"
            return False
        others = {name: f"no kernel computes with {kind} as it is" for name, kind in self._kinds.items()}
        self._forms = {**others, **forms}
        return True

    def choose_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """bfloat16."""
        return torch.bfloat16

    def hold(self, model: torch.nn.Module, table: list[Weight], names: Mapping[str, str]) -> list[Weight]:
        """Gives matrices words in place of their weights. names: of the table's tensors in the checkpoint.
        Returns the table, in which the targets of such tensors have no memory."""
        by_memory: dict[int, list[Weight]] = {}
        for weight in table:
            by_memory.setdefault(_memory(weight.target), []).append(weight)
        held: dict[int, Weight] = {}
        for path, module in model.named_modules():
            for slot in module.slots() if isinstance(module, WeightOwner) else ():
                parts = by_memory.get(_memory(slot.weight), [])
                form = self._form_of(slot, parts, names)
                if isinstance(form, str):
                    self._unpacked[path] = form
                elif form is not None:
                    held |= self._hold(slot, parts, names, form)
        return [held.get(id(weight), weight) for weight in table]

    def _form_of(
        self, slot: WeightSlot, parts: list[Weight], names: Mapping[str, str]
    ) -> GroupForm | str | None:
        """Returns the form of a matrix; why there is none; None where nothing of it is in groups."""
        forms = [self._forms.get(names[weight.name]) for weight in parts]
        if all(form is None for form in forms):
            return None
        found: list[GroupForm] = []
        for form in forms:
            if not isinstance(form, GroupForm):
                return form or "not all of its parts are packed"
            found.append(form)
        if any(stored_rows(weight, slot.weight.shape[1]) is None for weight in parts):
            return "its inputs are outputs of the stored weight"
        if not all(form.has_inputs_of(found[0]) for form in found[1:]):
            return "its parts have different groups of inputs"
        return found[0]

    def _hold(
        self, slot: WeightSlot, parts: list[Weight], names: Mapping[str, str], form: GroupForm
    ) -> dict[int, Weight]:
        """Returns what stands for each part in the table, by its id."""
        rows, inputs = slot.weight.shape
        e2m1 = form.stored.e2m1
        words = empty_words((rows, inputs), form.size, form.groups, form.order, self._arena, e2m1)
        self._num_bytes += words.nbytes
        slot.hold(words)
        replaced = {}
        for weight in parts:
            own, kind = self._forms[names[weight.name]], self._kinds[names[weight.name]]
            stored = stored_rows(weight, inputs)
            assert isinstance(own, GroupForm) and stored is not None
            self._held.add(kind if e2m1 else f"{kind}-int{own.stored.bits}")
            replaced[id(weight)] = moved = replace(weight, target=weight.target.to("meta"))
            self._rows[id(moved)] = HeldRows(words, own, stored)
        return replaced

    def fill(self, checkpoint: TensorSource, weight: Weight, name: str) -> Iterator[int]:
        """Fills what a tensor goes to: rows of words, or the target. Yields the bytes of each piece, in the
        target's dtype."""
        held = self._rows.get(id(weight))
        if held is None:
            yield from fill_target(checkpoint, weight, name)
            return
        first, places = held.rows.first, held.rows.places
        step = max(1, PIECE_VALUES // held.words.in_features)
        for begin in range(0, len(places), step):
            where = places[begin : begin + step]
            read = held.form.stored.read(first + begin, first + begin + len(where))
            check_finite(read.scales, checkpoint, name)
            wanted, count = where >= 0, len(where)
            if not wanted.all():
                read, where = type(read)(*(part[wanted] for part in read)), where[wanted]
            held.form.put(held.words, where, read)
            yield count * held.words.in_features * weight.target.itemsize

    def log(self, checkpoint: TensorSource, table: list[Weight], dtype: torch.dtype) -> None:
        """Says in one line what becomes of packed weights: a warning where some are unpacked."""
        if not self._packing:
            return
        unpacked = sum(
            weight.target.numel() * dtype.itemsize for weight in table if id(weight) not in self._rows
        )
        on_disk, in_memory = checkpoint.stored_bytes() / 1e6, (unpacked + self._num_bytes) / 1e6
        memory = f"{on_disk:.0f} MB of the file take {in_memory:.0f} MB of memory"
        name, refusal = str(dtype).removeprefix("torch."), self._refusal
        if self._unpacked:
            layer, reason = next(iter(self._unpacked.items()))
            more = f" (and {len(self._unpacked) - 1} more)" if len(self._unpacked) > 1 else ""
            refusal = f"{layer}{more}: {reason}"
        if not self._rows:
            logger.warning("weights in %s are unpacked to %s: %s; %s", self._packing, name, memory, refusal)
        elif self._unpacked:
            logger.warning(
                "weights in %s keep their integers, but some are unpacked to %s: %s; %s",
                *(self._packing, name, memory, refusal),
            )
        else:
            logger.info("weights in %s keep their integers, in %d bits: %s", self._packing, BITS, memory)


def _memory(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage: that of a parameter, for all views of it."""
    return tensor.untyped_storage().data_ptr()
