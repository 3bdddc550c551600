"""Tokens, tiles and spans of a step's adapters, as kernels read them."""

import pytest
import torch

from kernels.ops.layers.adapters import PlainAdapter, StepAdapters
from tests.worker.cuda.host_devices import host_device
from worker.cuda.adapter_columns import AdapterColumns
from worker.step.rows import PlanError

FIRST, SECOND = PlainAdapter((), address=640), PlainAdapter((), address=1280)


def columns(most_adapters: int = 2) -> AdapterColumns:
    return AdapterColumns(host_device(), 40, most_adapters, [1, 3])


def given(*counts: tuple[PlainAdapter, int]) -> StepAdapters:
    tokens = torch.arange(sum(count for _, count in counts)).flip(0)
    return StepAdapters(tokens, torch.empty(0, dtype=torch.int64), counts)


def test_tiles_are_cut_from_spans():
    loaded, step = columns(), given((FIRST, 17), (SECOND, 3))
    loaded.load(step)
    for found in (loaded.of(20), loaded.sent(step, 20)):
        assert found.tokens.tolist() == step.tokens.tolist()
        assert found.spans.tolist() == [[640, 0, 17], [1280, 17, 3]]
        assert found.tiles.tolist() == [[640, 0, 16], [640, 16, 1], [1280, 17, 3]]
        assert found.addresses.tolist() == [640, 640, 1280] and found.parts == [1, 3]


def test_what_the_last_step_had_is_gone():
    """At the same addresses, with the sizes of a larger step."""
    loaded = columns()
    before = loaded.of(40)
    loaded.load(given((FIRST, 17), (SECOND, 3)))
    loaded.load(given((SECOND, 1)))
    assert before.tiles.tolist() == [[1280, 0, 1], *[[0, 0, 0]] * 3]
    assert before.spans.tolist() == [[1280, 0, 1], [0, 0, 0]]
    nowhere = loaded.nowhere(40)
    assert nowhere.tiles.shape == before.tiles.shape and not nowhere.tiles.any()


def test_no_more_adapters_than_there_is_room_for():
    with pytest.raises(PlanError, match="more than 1 adapters"):
        columns(1).load(given((FIRST, 1), (SECOND, 1)))
    assert not len(columns(0).of(40).tiles)
