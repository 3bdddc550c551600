"""How much is computed to find out how long a token of a prompt takes."""

import pytest

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import unpack_u32
from worker.step.warmup_plans import measure_prefill


class Machine:
    """Takes `us` microseconds for each token, the first time twice that."""

    def __init__(self, us: int) -> None:
        self.us = us
        self.sizes: list[int] = []
        self.rows: set[int] = set()

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        self.rows -= set(unpack_u32(plan.removed_rows))
        if not plan.rows:
            return worker_pb2.StepResult()
        (size,) = unpack_u32(plan.counts)
        self.rows |= set(unpack_u32(plan.rows))
        assert len(unpack_u32(plan.new_rows[0].blocks)) * 4 >= size
        self.sizes.append(size)
        return worker_pb2.StepResult(duration_us=size * self.us * (1 + (self.sizes.count(size) == 1)))


@pytest.mark.parametrize(
    ("us", "most_tokens", "sizes"),
    [
        (1000, 4096, [16]),  # slow: one short prompt says enough
        (50, 4096, [16, 32, 64, 128]),
        (1, 100, [16, 32, 64, 100]),  # fast: as long as a prompt can be
        (9, 5, [5]),
        (9, 0, []),
    ],
)
def test_a_prompt_is_doubled_until_it_takes_long_enough(us: int, most_tokens: int, sizes: list[int]):
    machine = Machine(us)
    assert measure_prefill(machine.execute, most_tokens, 4) == (us if sizes else 0)
    assert machine.sizes == [size for size in sizes for _ in range(2)]
    assert not machine.rows, "the rows end"


def test_a_long_step_is_not_repeated():
    machine = Machine(2000)
    assert measure_prefill(machine.execute, 4096, 4) == 4000, "of the first step"
    assert machine.sizes == [16] and not machine.rows
