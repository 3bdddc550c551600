"""The readers of strangers' bytes, on inputs from a seed. `make fuzz` looks for more, driven by coverage."""

import random

import pytest

from tests.hostile.targets import SEEDS, TARGETS, damaged

INPUTS = 300


def test_every_target_has_seeds() -> None:
    assert SEEDS.keys() == TARGETS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_of_any_kind(name: str) -> None:
    target, draw = TARGETS[name], random.Random(name)
    for seed in (b"", *SEEDS[name]):
        target(seed)
    for _ in range(INPUTS):
        data = damaged(name, draw)
        try:
            target(data)
        except Exception as error:
            raise AssertionError(f"{name} on {data!r}") from error
