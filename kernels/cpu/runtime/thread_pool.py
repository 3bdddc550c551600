"""The threads that run programs (kernels.cpu.runtime.program): the caller's, and helpers that wait for runs.

Helpers are threads of this process that never hold the interpreter's lock while they compute. Between
runs they look for work for about 50 us, then sleep. There is one team in a process; a thread that calls it
while it runs waits.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kernels.cpu.compiler.records import Operation, OwnRecord, Record
from kernels.cpu.runtime import program
from kernels.cpu.runtime.records import FIELDS_BYTES, ProgramHead, ProgramRecord

Words = npt.NDArray[np.int64]
AnyRecord = TypeVar("AnyRecord", bound=Record)
WORDS = ProgramRecord.size() // 8
LINE = 64


class Program:
    """Records that run one after the other. Their memory is never freed: see kernels.cpu.runtime.program."""

    _all: list[Words] = []

    def __init__(self, size: int, slack: int = 0) -> None:
        """size: number of records. slack: how many records a thread may lag behind while what it still writes
        does no harm; 0: all threads wait. See kernels.cpu.runtime.straggler_recovery."""
        self._memory = _zeros((1 + size) * WORDS)
        self._all.append(self._memory)
        self.records = self._memory.reshape(1 + size, WORDS)[1:]  # [size, 32]
        self.address = int(self._memory.ctypes.data)
        self._own = [ProgramRecord.at(self.address, 1 + index) for index in range(size)]
        self._head = ProgramHead.at(self.address)
        self._head.count, self._head.slack = size, slack

    @property
    def slack(self) -> int:
        """How many records a thread may lag behind; see __init__(). It may be changed between runs."""
        return self._head.slack

    @slack.setter
    def slack(self, slack: int) -> None:
        self._head.slack = slack

    def put(
        self,
        index: int,
        operation: Operation[OwnRecord],
        rows: int,
        record: OwnRecord,
        grain: int,
        repeatable: bool = False,
    ) -> None:
        """Copies an operation's record to an index. grain: the fewest rows that a thread takes; 0 for a
        product. repeatable: it writes to nothing that it reads."""
        size = ctypes.sizeof(record)
        assert size <= FIELDS_BYTES
        record.operation, record.rows = operation, rows
        own = self._own[index]
        own.grain, own.repeatable = grain, repeatable
        ctypes.memmove(ctypes.addressof(own), ctypes.addressof(record), size)


class Team:
    """Runs programs on several threads."""

    def __init__(self) -> None:
        self._control = _zeros(program.CONTROL // 8)
        self._address = int(self._control.ctypes.data)
        self._started = 0
        self._one = Program(1)
        self._lock = threading.Lock()
        self._scratch = _zeros(program.MOST_THREADS)  # addresses, a thread's each
        self._scratch_address = int(self._scratch.ctypes.data)
        self._scratch_bytes = 0
        self._memory: list[Words] = []  # what they point at
        self.recovers_stragglers = True
        """Whether programs that are recorded from now on let an idle thread repeat units of a thread that has
        lost its core; see kernels.cpu.runtime.straggler_recovery. Off where no other process runs on the
        cores."""

    @property
    def threads(self) -> int:
        """That run programs."""
        return int(self._control[program.HELPERS // 8]) + 1

    def set_threads(self, threads: int) -> None:
        """From the next run on."""
        if threads > program.MOST_THREADS:
            raise ValueError(f"threads is {threads}: a team has at most {program.MOST_THREADS}")
        while self._started < threads - 1:
            self._started += 1
            arguments = (self._address, 0, self._started)
            name = f"kernels-{self._started}"
            threading.Thread(target=program.enter, args=arguments, name=name, daemon=True).start()
        self._control[program.HELPERS // 8] = threads - 1
        self._make_scratch()

    def scratch(self, num_bytes: int) -> int:
        """Address of the addresses of memory of this size, at least, for each thread. Operations may use it
        for what they need no longer than a unit."""
        if num_bytes > self._scratch_bytes:
            self._scratch_bytes = num_bytes
            self._make_scratch()
        return self._scratch_address

    def _make_scratch(self) -> None:
        with self._lock:  # no program is running
            self._memory = [_zeros(self._scratch_bytes // 8 + 8) for _ in range(self.threads)]
            self._scratch[: self.threads] = [memory.ctypes.data for memory in self._memory]

    def run(self, work: Program) -> None:
        """Returns when all is done."""
        with self._lock:
            program.enter(self._address, work.address, 0)

    @property
    def address(self) -> int:
        """Of the control block: kernels.cpu.runtime.program."""
        return self._address

    def call(self, function: Callable[[AnyRecord], None], job: AnyRecord) -> None:
        """Calls a compiled function that runs a program of this team itself."""
        with self._lock:
            function(job)

    def run_one(self, operation: Operation[OwnRecord], rows: int, record: OwnRecord, grain: int) -> None:
        """Runs a program of one record."""
        with self._lock:
            self._one.put(0, operation, rows, record, grain)
            program.enter(self._address, self._one.address, 0)


def _zeros(words: int) -> Words:
    """Where a cache line begins."""
    memory = np.zeros(words + LINE // 8, np.int64)
    first = -memory.ctypes.data % LINE // 8
    return memory[first : first + words]


TEAM = Team()
"""Of this process."""
