"""The blocks of a core that move: those that others read, and those that it reads."""

from __future__ import annotations

from engine_core.context import CoreContext
from engine_core.kv_transfer.leases import Leases
from engine_core.kv_transfer.pulls import NO_TRANSFER, BlockReader, Pulls, TransferOptions


class KvTransfer:
    """All methods run in the step loop's thread."""

    def __init__(
        self, context: CoreContext, worker: BlockReader, options: TransferOptions = NO_TRANSFER
    ) -> None:
        self.leases = Leases(context, options.address)
        self.pulls = Pulls(context, worker, options)

    @property
    def is_active(self) -> bool:
        """Whether blocks move, so that the step loop has to go round."""
        return bool(len(self.leases) or len(self.pulls))
