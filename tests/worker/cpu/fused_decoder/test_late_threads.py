"""A step on two threads of which one loses its core, in each kind of record: the same bits, now and later."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kernels.attention.block_plan import BlockAttentionPlan
from kernels.attention.latent import BlockLatentPlan
from kernels.cpu.program.program import StepProgram
from kernels.cpu.program.recording import RecordingOps
from kernels.cpu.runtime.records import ProgramRecord
from tests.worker.fakes import Driver
from worker.cpu.fused_decoder.decoder import FusedDecoder

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

    def __init__(self, lowered: StepProgram, index: int, used: list[int]) -> None:
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


def program_of(driver: Driver) -> StepProgram:
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


def first_of_each_kind(lowered: StepProgram, used: list[int]) -> list[int]:
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


@contextmanager
def computed_again(lowered: StepProgram, index: int) -> Iterator[None]:
    """Another thread computes all units of a record again and again, as a straggler does."""
    record = lowered.program.records[index]
    operation = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(int(record[OPERATION]))
    began, stop = threading.Event(), threading.Event()

    def compute() -> None:
        while not stop.is_set():
            operation(record.ctypes.data, 0, int(record[ProgramRecord.word("units")]), 1)
            began.set()

    thread = threading.Thread(target=compute)
    thread.start()
    began.wait()  # later layers may have changed what it reads
    yield
    stop.set()
    thread.join()


def memory_of(lowered: StepProgram) -> list[torch.Tensor]:
    """The activations of a program whose layers are few enough to share none, and the parts of attention."""
    ops, batch = lowered._memory, lowered._batch
    assert isinstance(ops, RecordingOps) and batch is not None
    (planned,) = batch.attention.values()
    assert isinstance(planned, BlockAttentionPlan | BlockLatentPlan) and len(planned.plan.partials)
    in_sets = (values for of_set in ops.buffers._sets for values in of_set.values())
    return [planned.plan.partials, *ops.buffers._lasting, *in_sets]


@pytest.mark.parametrize(
    "family, dtype, quantization",
    [
        ("llama", "bfloat16", ""),
        ("llama", "bfloat16", "int4"),
        ("mixtral", "float32", ""),
        ("mixtral", "bfloat16", "int4"),
        ("youtu", "bfloat16", ""),
    ],
)
def test_what_is_written_again_is_the_result_and_nothing_else(
    family: str,
    dtype: str,
    quantization: str,
    checkpoint: Callable[..., Path],
    two_threads: Callable[[], None],
) -> None:
    """Others read what a straggler writes: no sum may be formed there. The parts of a long row's attention
    are read by whichever thread combines them."""
    heads = {"head_dim": 32} if family != "youtu" else {}
    folder = checkpoint(family, num_hidden_layers=2, max_position_embeddings=1024, **heads)
    sizes = {"block_size": 16, "num_blocks": 80, "max_num_seqs": 2}
    driver = Driver(folder, dtype=dtype, quantization=quantization, **sizes)
    two_threads()
    driver.add([3 + 7 * i % 90 for i in range(600)], LENGTH)
    driver.run()
    lowered = program_of(driver)
    records, memory = lowered.program.records, memory_of(lowered)
    used = [int(index) for index in (records[:, ROWS] > 0).nonzero()[0]]
    for index in first_of_each_kind(lowered, [*used, used[-1]]):
        if records[index, REPEATABLE] >> 32:
            with computed_again(lowered, index):
                expected = [values.clone() for values in memory]
                changed = any(
                    not values.view(torch.uint8).equal(before.view(torch.uint8))
                    for _ in range(200)
                    for values, before in zip(memory, expected, strict=True)
                )
            assert not changed, f"record {index}"
