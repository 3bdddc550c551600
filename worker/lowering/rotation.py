"""The rotation of a lowered program: its records read the angles of each step where they lie."""

from collections.abc import Callable

from kernels.cpu.elementwise.records import RotaryRecord
from worker.attention.plan import Rotation
from worker.lowering.program import Records
from worker.model_input import InputBatch

_COS, _END = RotaryRecord.word("cos"), RotaryRecord.word("index") + 1


class LoweredRotation:
    """Keeps the angles of the current step alive, and their addresses in all records that rotate."""

    def __init__(self, rotation_of: Callable[[InputBatch], Rotation], queries_only: bool = False) -> None:
        """rotation_of: Rotary.rotation of worker.layers.attention. queries_only: as in what it returns."""
        self.queries_only = queries_only
        self._rotation_of = rotation_of
        self._rotation: Rotation
        self._addresses = 0, 0, 0
        self._indexes: list[int] = []

    def is_fixed(self, batch: InputBatch) -> bool:
        """Whether the angles are looked up by the positions of the batch, as its next ones will be."""
        return self._rotation.index is not None

    def add(self, index: int) -> None:
        """index: of a RotaryRecord."""
        self._indexes.append(index)

    def update(self, batch: InputBatch, records: Records) -> None:
        """Writes down where the angles of this step lie, where that has changed."""
        rotation = self._rotation_of(batch)
        index = 0 if rotation.index is None else rotation.index.data_ptr()
        addresses = rotation.cos.data_ptr(), rotation.sin.data_ptr(), index
        if addresses != self._addresses:
            self._addresses = addresses
            records[self._indexes, _COS:_END] = addresses
        self._rotation = rotation
