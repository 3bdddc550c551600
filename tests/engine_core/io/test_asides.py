"""What ranks answer beside steps."""

import pytest

from engine_core.io.asides import Asides
from pagewire.internal.v1.worker_pb2 import (
    AdapterLoaded,
    BlocksRead,
    GrammarCompiled,
    StepResult,
    WorkerMessage,
)

COMPILED = WorkerMessage(grammar_compiled=GrammarCompiled(number=4))
LOADED = WorkerMessage(adapter_loaded=AdapterLoaded(number=5))
READ = WorkerMessage(blocks_read=BlocksRead(number=6))


def test_answers_are_taken_once() -> None:
    """A grammar is that of rank 0; an adapter is there when all ranks have it."""
    asides = Asides()
    for rank in (1, 0):
        assert not (asides or asides.take_adapters())
        assert asides.add(rank, 2, LOADED)
        assert asides.add(rank, 2, COMPILED)
        assert bool(asides) == (rank == 0)
    assert asides.add(0, 2, READ)
    assert asides.take_compiled() == [4] and [each.number for each in asides.take_adapters()] == [5]
    assert asides and asides.take_blocks_read() == [READ.blocks_read]
    assert not asides and not asides.take_compiled() and not asides.take_blocks_read()


@pytest.mark.parametrize("message", [WorkerMessage(step_result=StepResult()), WorkerMessage()])
def test_what_is_no_answer(message: WorkerMessage) -> None:
    asides = Asides()
    assert not asides.add(0, 1, message) and not asides
