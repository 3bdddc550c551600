"""A step on two threads of which one loses its core, in each kind of record: the same bits, now and later."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kernels.cpu.runtime.records import ProgramRecord
from tests.worker.fakes import Driver
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.lowering.program import LoweredProgram

pytestmark = pytest.mark.cpu_kernels

OPERATION, ROWS = ProgramRecord.word("operation"), ProgramRecord.word("rows")
REPEATABLE = ProgramRecord.word("repeatable")
LAYERS, PROMPT, LENGTH = 6, 5, 4


@pytest.fixture
def two_threads() -> Iterator[Callable[[], None]]:
    """Call it after a model is loaded, which chooses one thread."""
    from kernels.cpu.runtime.thread_pool import TEAM

    before = TEAM.threads
    yield lambda: TEAM.set_threads(2)
    TEAM.set_threads(before)


class Stall:
    """One thread stalls in a record of the program's next run, until the other one has gone as far as the
    slack allows."""

    def __init__(self, lowered: LoweredProgram, index: int, used: list[int]) -> None:
        """index: of the record. used: of all that have rows in that run."""
        from tests.kernels.cpu import straggling as stand_ins

        self.words = torch.zeros(8, dtype=torch.int64)
        self._stand_ins, records = stand_ins, lowered.program.records
        behind = [at for at in used if at > index]
        last = index + lowered.program.slack - 1
        self._released = max(at for at in behind if at <= max(last, behind[0]))
        self._stalled, self._records = index, records

    def __enter__(self) -> "Stall":
        places = (self._stalled, self._stand_ins.stalled), (self._released, self._stand_ins.releasing)
        for index, stand_in in places:
            record = self._records[index]
            record[self._stand_ins.ORIGINAL], record[OPERATION] = record[OPERATION], stand_in
            record[self._stand_ins.WORDS] = self.words.data_ptr()
        return self

    def __exit__(self, *_: object) -> None:
        for index in (self._stalled, self._released):
            self._records[index, OPERATION] = self._records[index, self._stand_ins.ORIGINAL]

    @property
    def was_late(self) -> bool:
        """Whether another thread has computed what the straggler had begun."""
        entered, left = self.words[self._stand_ins.ENTERED], self.words[self._stand_ins.LEFT]
        assert not self.words[self._stand_ins.GAVE_UP], "no other thread went on"
        return bool(entered > 1 and left)


def program_of(driver: Driver) -> LoweredProgram:
    model = driver.runner.backend.model
    assert isinstance(model, FusedDecoder)
    return model.programs[True]


def logits_of(
    driver: Driver, stalls_in: int | None = None, used: list[int] | None = None
) -> tuple[torch.Tensor, bool]:
    """Of one row, token by token; the second of them with a stall in this record. And whether a thread was
    late there. used: see Stall."""
    sequence = driver.add([3 + 7 * i for i in range(PROMPT)], LENGTH)[0]
    driver.step()
    late = False
    if stalls_in is not None:
        with Stall(program_of(driver), stalls_in, used or []) as stall:
            driver.step()
        late = stall.was_late
    driver.run()
    return torch.stack(sequence.logits), late


def first_of_each_kind(lowered: LoweredProgram, used: list[int]) -> list[int]:
    """One record of each operation, of those in use but the last one."""
    first: dict[int, int] = {}
    for index in used[:-1]:
        first.setdefault(int(lowered.program.records[index, OPERATION]), index)
    return list(first.values())


@pytest.mark.parametrize("quantization", ["", "int8", "int4"])
def test_a_thread_that_is_late_in_any_record(
    quantization: str, checkpoint: Callable[..., Path], two_threads: Callable[[], None]
) -> None:
    """A late thread computes from inputs that later layers have overwritten, and must write where nothing
    reads any more. A KV cache is read in later steps, so that the logits of all of them are compared."""
    folder = checkpoint("llama", head_dim=32, num_hidden_layers=LAYERS)
    sizes = {"block_size": 16, "num_blocks": 40, "max_num_seqs": 2}
    driver = Driver(folder, dtype="bfloat16", quantization=quantization, **sizes)
    two_threads()
    expected, _ = logits_of(driver)
    lowered = program_of(driver)
    assert lowered.program.slack > 0
    used = [int(index) for index in (lowered.program.records[:, ROWS] > 0).nonzero()[0]]
    late = {}
    for index in first_of_each_kind(lowered, used):
        logits, late[index] = logits_of(driver, index, used)
        assert torch.equal(logits, expected), f"a thread that stalled in record {index}"
    repeatable = lowered.program.records[list(late), REPEATABLE] >> 32 != 0
    assert len(late) >= 6 and list(late.values()) == repeatable.tolist()
