"""Hidden states that go from one stage of a pipeline to the next."""

import torch

from worker.layers.base import Layer
from worker.layers.block import CapturedStates, Stream
from worker.parallel import Stage


class Handover(Layer):
    """Copies hidden states between the ranks of two stages, which both know their shape; and those that were
    captured for stage 0 behind blocks of other stages. It has no parameters."""

    def __init__(self, stage: Stage, width: int, dtype: torch.dtype) -> None:
        """width, dtype: of the hidden states."""
        super().__init__()
        self._stage, self._width, self._dtype = stage, width, dtype
        self.capturing: CapturedStates | None = None
        """Of the model; None: nothing is captured."""

    @property
    def row_bytes(self) -> int:
        """Of the hidden states of a token."""
        return self._width * self._dtype.itemsize

    def send(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> None:
        """Sends a Stream to the next stage, or the last hidden states to stage 0."""
        numbers = self._captured(self._stage.layers.stop)
        captured = [] if self.capturing is None else [self.capturing[number] for number in numbers]
        for each in (x, *([] if residual is None else [residual]), *captured):
            self.ops.send(each, self._stage.behind)

    def receive(self, tokens: int, has_residual: bool = False) -> Stream:
        """Returns what the stage before has sent, of so many tokens."""
        stage = self._stage
        first, *others = (
            self.ops.receive((tokens, self._width), self._dtype, stage.before)
            for _ in range(1 + has_residual)
        )
        for number in self._captured(stage.starts[-1] if stage.is_first else stage.layers.start):
            assert self.capturing is not None
            self.capturing[number] = self.ops.receive((tokens, self._width), self._dtype, stage.before)
        return first, others[0] if others else None

    def _captured(self, last: int) -> list[int]:
        """Returns the numbers of the blocks of all stages but the first, up to a block, behind which states
        are captured."""
        after = () if self.capturing is None else self.capturing.after
        return sorted(number for number in after if self._stage.starts[1] < number <= last)
