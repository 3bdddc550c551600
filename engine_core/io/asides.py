"""Answers of ranks to what they do beside steps, which a step loop looks for between two of these."""

from engine_core.io.rank_adapters import AdapterAnswers
from pagewire.internal.v1.worker_pb2 import AdapterLoaded, BlocksRead, WorkerMessage


class Asides:
    """The answers of the ranks of one worker, until they are taken."""

    def __init__(self) -> None:
        self._compiled: list[int] = []
        self._adapters = AdapterAnswers()
        self._blocks_read: list[BlocksRead] = []

    def __bool__(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._compiled or self._adapters or self._blocks_read)

    def add(self, rank: int, num_ranks: int, message: WorkerMessage) -> bool:
        """Returns whether a message of a rank is such an answer; then it is kept."""
        kind = message.WhichOneof("message")
        if kind == "grammar_compiled":
            if rank == 0:
                self._compiled.append(message.grammar_compiled.number)
        elif kind == "adapter_loaded":
            self._adapters.add(rank, num_ranks, message.adapter_loaded)
        elif kind == "blocks_read":
            self._blocks_read.append(message.blocks_read)
        else:
            return False
        return True

    def take_compiled(self) -> list[int]:
        """Returns the numbers of grammars that rank 0 has compiled since the last call."""
        compiled, self._compiled = self._compiled, []
        return compiled

    def take_adapters(self) -> list[AdapterLoaded]:
        """Returns what all ranks have answered to LoadAdapter since the last call."""
        return self._adapters.take()

    def take_blocks_read(self) -> list[BlocksRead]:
        """Returns the answers to ReadBlocks since the last call."""
        read, self._blocks_read = self._blocks_read, []
        return read
