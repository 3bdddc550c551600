"""Records whose row count is read from memory when the program reaches them."""

import pytest
import torch

from kernels.cpu.matmul.packed import pack_weight
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels
BF16 = torch.bfloat16
MOST = 40


@pytest.mark.parametrize("counts", [[0, 0, 0], [1, 7, 0], [40, 0, 33], [5, 16, 40]])
def test_rows_that_an_operation_before_computes(counts: list[int], threads: int):
    """A gather writes the counts (rows of a table that the run looks up); then one product and one activation
    per expert have as many rows. The same program runs with other counts; slack does not matter."""
    from kernels.cpu.elementwise.records import GatedActivationRecord
    from kernels.cpu.experts.dispatch import decide_rows, row_targets
    from kernels.cpu.layer_kernels import row_kernels
    from kernels.cpu.matmul.records import PackedRowsRecord
    from kernels.cpu.runtime.records import DecideRowsRecord, ProgramRecord
    from kernels.cpu.runtime.thread_pool import TEAM, Program

    experts = [pack_weight(random(64, 32, dtype=BF16, seed=i), None) for i in range(len(counts))]
    x = random(MOST, 32, dtype=BF16, seed=9)
    wide = torch.empty(len(counts), MOST, 64, dtype=BF16)
    out = torch.empty(len(counts), MOST, 32, dtype=BF16)
    # A packed table whose row r holds, as bits, the counts of a run: 4 values of 16 bits are an int64.
    table = torch.zeros(2, 16, dtype=torch.int16)
    table[1, : 4 * len(counts)] = torch.tensor(counts).view(torch.int16)
    packed = pack_weight(table.view(BF16), None)
    index, decided = torch.zeros(1, dtype=torch.int64), torch.full((4,), 17)

    silu = row_kernels(BF16).silu
    work = Program(2 + 2 * len(counts))
    gather = PackedRowsRecord(
        indexes=index.data_ptr(), weight=packed.words.data_ptr(), out=decided.data_ptr(), words=8
    )
    work.put(0, packed.gather, 1, gather, 1)
    targets = []
    for i, expert in enumerate(experts):
        work.put(2 + 2 * i, expert.product, 99, expert.record(x, wide[i]), 0)
        record = GatedActivationRecord(gate_up=wide[i].data_ptr(), out=out[i].data_ptr(), width=32, factor=1)
        work.put(3 + 2 * i, silu, 99, record, 4)
        for number in (2 + 2 * i, 3 + 2 * i):
            address = ProgramRecord.at(work.address, 1 + number).address
            targets.append((address, decided.data_ptr() + 8 * i))
    pairs = row_targets(targets)
    work.put(1, decide_rows, len(targets), DecideRowsRecord(targets=pairs.ctypes.data), 1)

    for chosen in (1, 0, 1):
        index[0] = chosen
        wide.fill_(7), out.fill_(7)
        TEAM.run(work)
        for i, expert in enumerate(experts):
            rows = counts[i] if chosen else 0
            expected = torch.nn.functional.silu(expert.multiply(x[:rows])[:, :32].float())
            expected = expected * expert.multiply(x[:rows])[:, 32:].float()
            torch.testing.assert_close(out[i, :rows].float(), expected, rtol=2**-7, atol=1e-6)
            assert torch.equal(wide[i, :rows], expert.multiply(x[:rows]))
            assert (wide[i, rows:] == 7).all() and (out[i, rows:] == 7).all(), "no row more"
