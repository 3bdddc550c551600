"""The warm-up computes a prompt and a decoding step, as far as the limits allow, and leaves no row."""

from types import SimpleNamespace

import pytest

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import unpack_u32
from worker.platforms.cpu import warm_up
from worker.step.rows import RowTable


class Recorder:
    """An executor that keeps the plans."""

    def __init__(self, max_model_len: int, block_size: int, drafts: bool) -> None:
        self.drafts = drafts
        self.backend = SimpleNamespace(stages=1)
        self.rows = RowTable(2, max_model_len, vocab_size=9, block_size=block_size, num_blocks=4)
        self.plans: list[worker_pb2.StepPlan] = []

    def execute(self, plan: worker_pb2.StepPlan) -> None:
        self.plans.append(plan)


@pytest.mark.parametrize(
    ("max_model_len", "block_size", "drafts", "starts"),
    [
        (1, 4, True, []),  # no row can have output
        (2, 4, True, [0]),  # and here only one token
        (8, 1, True, [0]),  # the second token would need a second block
        (8, 4, False, [0, 1]),
        (8, 4, True, [0, 1, 2]),
        (4, 4, True, [0, 1]),  # a draft would go beyond the context
    ],
)
def test_steps(max_model_len: int, block_size: int, drafts: bool, starts: list[int]):
    executor = Recorder(max_model_len, block_size, drafts)
    warm_up(executor)  # type: ignore[arg-type]
    assert [unpack_u32(plan.starts)[0] for plan in executor.plans if plan.rows] == starts
    if starts:
        assert unpack_u32(executor.plans[-1].removed_rows) == [0] and not executor.plans[-1].rows
