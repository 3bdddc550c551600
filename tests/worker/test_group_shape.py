"""The ranks of a worker, stage after stage."""

import pytest

from pagewire.internal.v1.worker_pb2 import Initialize
from worker.group_shape import group_shape, parts_of


def test_one_worker_is_a_group():
    assert group_shape(Initialize()) == (1, 1)
    assert group_shape(Initialize(tensor_parallel_size=2, pipeline_parallel_size=3)) == (2, 3)


@pytest.mark.parametrize(
    ("tensor", "stages", "parts"),
    [
        (4, 1, []),
        (1, 2, [(0, 1), (1, 0)]),
        (1, 3, [(0, 1), (1, 2), (2, 0)]),
        (2, 2, [(0, 1), (2, 3), (0, 2), (1, 3), (2, 0), (3, 1)]),
    ],
)
def test_what_ranks_exchange_by_themselves(tensor: int, stages: int, parts: list[tuple[int, ...]]):
    """Those of a stage, and each with the next."""
    assert parts_of(tensor, stages) == parts
