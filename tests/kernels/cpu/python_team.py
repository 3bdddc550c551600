"""Operations as Python runs them."""

from typing import Any

from kernels.cpu.compiler.records import Operation
from kernels.cpu.runtime.thread_pool import TEAM
from kernels.cpu.runtime.work_split import linear_units


class PythonTeam:
    """Stands in for a team of threads: runs operations in Python, in two parts, and keeps their names."""

    def __init__(self, computes: bool = True) -> None:
        """computes: False keeps the names alone."""
        self.names: set[str] = set()
        self._computes = computes

    def scratch(self, num_bytes: int) -> int:
        """See Team.scratch()."""
        return TEAM.scratch(num_bytes)

    def run_one(self, operation: Operation[Any], rows: int, record: Any, grain: int) -> None:
        """See Team.run_one(); a grain of 0 is that of products."""
        self.names.add(operation.name)
        record.rows = rows
        units = rows if grain else linear_units(record)
        for first, count in ((0, units // 2), (units // 2, units - units // 2)) if self._computes else ():
            operation.reference(record, first, count, 0)
