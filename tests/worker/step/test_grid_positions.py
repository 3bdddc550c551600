"""Positions of three axes: those of transformers, and the same ones wherever a step begins."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3VLModel

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from tests.worker.vision.images import item_of
from worker.config.vision import PixelsConfig, ProjectorConfig, TowerConfig, VisionConfig
from worker.step.grid_positions import AXES, GridPositionRows, grid_positions

PROMPTS: list[list[int | tuple[int, int]]] = [
    [(1, 1)],
    [5, (2, 3), 4],
    [(4, 6)],
    [3, (1, 7), 1, (5, 2), 1, (3, 3), 8],
    [2, (6, 1), 3, (1, 1), 2],
]
"""Texts of so many tokens, and images of so many rows and columns of vectors."""
CELL = 4
"""Pixels of a side that become a vector."""


def items_of(prompt: list[int | tuple[int, int]]) -> tuple[list[tuple[Integers, int, int]], int]:
    """Returns what grid_positions() takes, and the length of a prompt."""
    items, length = list[tuple[Integers, int, int]](), 0
    for part in prompt:
        count = part if isinstance(part, int) else part[0] * part[1]
        if isinstance(part, tuple):
            items.append((np.arange(length, length + count), *part))
        length += count
    return items, length


@pytest.mark.parametrize("prompt", PROMPTS)
def test_as_transformers(prompt: list[int | tuple[int, int]]):
    items, length = items_of(prompt)
    types = torch.zeros(1, length, dtype=torch.int32)
    for indexes, _, _ in items:
        types[0, torch.from_numpy(indexes)] = 1
    grids = torch.tensor([[1, 2 * rows, 2 * columns] for _, rows, columns in items])
    model: Any = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    model.get_vision_position_ids = lambda *given, **named: Qwen3VLModel.get_vision_position_ids(
        model, *given, **named
    )
    ids = torch.zeros(1, length, dtype=torch.int64)
    expected, deltas = Qwen3VLModel.get_rope_index(model, ids, types, image_grid_thw=grids)
    made, found = grid_positions(items), np.empty((AXES, length + 3), np.int64)
    made.write(0, found)
    assert np.array_equal(found[:, :length], expected[:, 0].numpy())
    assert made.shift == deltas.item() and made.shift <= 0
    assert (found[:, length:] == np.arange(length, length + 3) + made.shift).all()
    assert (found <= np.arange(length + 3)).all()
    for start in range(length + 3):
        part = np.empty((AXES, min(2, length + 3 - start)), np.int64)
        made.write(start, part)
        assert np.array_equal(part, found[:, start : start + 2])


def test_items_of_other_counts_stay_within_their_indexes():
    """They fail for want of vectors; what is looked up by position has no row for more."""
    made = grid_positions([(np.array([1, 2]), 9, 9), (np.array([4, 6]), 1, 2)])
    assert (made.table <= np.arange(7)).all() and made.shift <= 0


def test_a_step_has_those_of_its_rows():
    rows = GridPositionRows(vision(has_grid_positions=True))
    image = np.zeros((2 * CELL, 3 * CELL, 3), np.uint8)
    rows.add_row(4, worker_pb2.NewRow(media=[item_of(image, range(2, 8))]), [0] * 9, [])
    rows.add_row(2, worker_pb2.NewRow(), [0] * 9, [])
    rows.fork_row(7, 4, 1)
    step: Any = SimpleNamespace(
        rows=np.array([2, 4, 7]), starts=np.array([3, 6, 12]), counts=np.array([2, 4, 1])
    )
    found = rows.of_step(np.array([5, 1, 0]), step)  # decoding rows come first
    assert found is not None and found.T.tolist() == [
        *([9] * 3, [2, 3, 3], [2, 3, 4], [5] * 3, [6] * 3),
        *([3] * 3, [4] * 3),
    ]


def test_other_models_read_none():
    for config in (None, vision()):
        rows = GridPositionRows(config)
        image = np.zeros((CELL, CELL, 3), np.uint8)
        rows.add_row(0, worker_pb2.NewRow(media=[item_of(image, [0])]), [0] * 3, [])
        assert not rows.are_read


def vision(*, has_grid_positions: bool = False) -> VisionConfig:
    ones = (1.0, 1.0, 1.0)
    tower = TowerConfig(
        kind="",
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        intermediate_size=8,
        activation="gelu",
        norm_eps=1e-5,
        patch_size=CELL // 2,
        image_size=CELL,
    )
    return VisionConfig(
        pixels=PixelsConfig(scale=1.0, mean=ones, std=ones),
        tower=tower,
        projector=ProjectorConfig(merge=2),
        features=(1,),
        has_grid_positions=has_grid_positions,
    )
