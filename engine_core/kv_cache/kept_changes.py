"""What enters and leaves the prefix cache, for the worker: it outlives an engine core that is killed, and
tells the next one which of its blocks hold what, and which of its checkpoints of states.

Changes travel with the plans, and the worker executes all plans that it has: so a block that it names is
full, a checkpoint that it names is saved, and what a plan may write to is not among those that it names. What
was found or lost since the last plan is told before the core waits, and what was lost by distrust or by a
reset at once.
"""

from collections.abc import Callable

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32


class ContentChanges:
    """Which of some numbered places, blocks or checkpoints, have got or lost a content since the last call of
    take_losses() and take_kept()."""

    def __init__(self, on_loss: Callable[[], None]) -> None:
        """on_loss: called when contents are forgotten for another reason than that a plan writes there."""
        self.on_loss = on_loss
        self._kept: dict[int, bytes] = {}
        self._forgotten: dict[int, None] = {}
        self._forgets_all = False

    def __bool__(self) -> bool:
        return bool(self._kept or self._forgotten or self._forgets_all)

    def kept(self, place: int, content: bytes) -> None:
        """A place is cached; the plan in the making, or one before it, computes the last of it."""
        self._kept[place] = content

    def forgotten(self, place: int) -> None:
        """A place is not cached any more; the plan in the making may write to it."""
        if self._kept.pop(place, None) is None:
            self._forgotten[place] = None

    def forgot_all(self) -> None:
        """No place is cached any more."""
        self._kept.clear()
        self._forgotten.clear()
        self._forgets_all = True

    def take_kept(self) -> tuple[bytes, bytes]:
        """Returns two columns, the places that were cached and their contents."""
        columns = pack_u32(list(self._kept)), b"".join(self._kept.values())
        self._kept.clear()
        return columns

    def take_losses(self) -> tuple[bool, bytes]:
        """Returns whether all were forgotten, and the column of those that were forgotten since."""
        losses = self._forgets_all, pack_u32(list(self._forgotten))
        self._forgotten.clear()
        self._forgets_all = False
        return losses


class KeptChanges:
    """Changes that take() has not returned yet."""

    def __init__(self, on_loss: Callable[[], None] = lambda: None) -> None:
        """on_loss: see ContentChanges."""
        self.blocks = ContentChanges(on_loss)
        self.checkpoints = ContentChanges(on_loss)
        """Of states: see state_checkpoints.py."""

    def __bool__(self) -> bool:
        return bool(self.blocks) or bool(self.checkpoints)

    def take(self) -> worker_pb2.KeptChanges:
        """Returns the changes since the last call. To be sent with a plan, or when all plans were sent."""
        message = self.take_losses()
        message.kept_blocks, message.kept_contents = self.blocks.take_kept()
        message.kept_checkpoints, message.kept_checkpoint_contents = self.checkpoints.take_kept()
        return message

    def take_losses(self) -> worker_pb2.KeptChanges:
        """Returns what was forgotten since the last call. May be sent at any time."""
        forgets_all, blocks = self.blocks.take_losses()
        forgets_checkpoints, checkpoints = self.checkpoints.take_losses()
        return worker_pb2.KeptChanges(
            forgets_all=forgets_all,
            forgotten_blocks=blocks,
            forgets_all_checkpoints=forgets_checkpoints,
            forgotten_checkpoints=checkpoints,
        )
