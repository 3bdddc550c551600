"""What enters and leaves the prefix cache, for the worker: it outlives an engine core that is killed, and
tells the next one which of its blocks hold what.

Changes travel with the plans, and the worker executes all plans that it has: so a block that it names is
full, and a block that a plan may write to is not among those that it names. What was found or lost since the
last plan is told before the core waits, and what was lost by distrust or by a reset at once.
"""

from collections.abc import Callable

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32


class BlockChanges:
    """Changes that take() has not returned yet."""

    def __init__(self, on_loss: Callable[[], None] = lambda: None) -> None:
        """on_loss: called when blocks are forgotten for another reason than that a plan writes to them."""
        self.on_loss = on_loss
        self._kept: dict[int, bytes] = {}
        self._forgotten: dict[int, None] = {}
        self._forgets_all = False

    def __bool__(self) -> bool:
        return bool(self._kept or self._forgotten or self._forgets_all)

    def kept(self, block: int, content: bytes) -> None:
        """A block is cached; the plan in the making, or one before it, computes the last of it."""
        self._kept[block] = content

    def forgotten(self, block: int) -> None:
        """A block is not cached any more; the plan in the making may write to it."""
        if self._kept.pop(block, None) is None:
            self._forgotten[block] = None

    def forgot_all(self) -> None:
        """No block is cached any more."""
        self._kept.clear()
        self._forgotten.clear()
        self._forgets_all = True

    def take(self) -> worker_pb2.BlockChanges:
        """Returns the changes since the last call. To be sent with a plan, or when all plans were sent."""
        message = self.take_losses()
        message.kept_blocks = pack_u32(list(self._kept))
        message.kept_contents = b"".join(self._kept.values())
        self._kept.clear()
        return message

    def take_losses(self) -> worker_pb2.BlockChanges:
        """Returns what was forgotten since the last call. May be sent at any time."""
        losses = worker_pb2.BlockChanges(
            forgets_all=self._forgets_all, forgotten_blocks=pack_u32(list(self._forgotten))
        )
        self._forgotten.clear()
        self._forgets_all = False
        return losses
