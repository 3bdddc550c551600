"""Beam searches in the scheduler, over a fake model."""

import pytest

from tests.engine_core.fake_beams import beam_search
from tests.engine_core.world import World


def test_a_search_alone():
    world = World()
    world.add(1, prompt=9, n=4, beams=beam_search(4), max_tokens=12)
    world.finish()


@pytest.mark.parametrize("ahead", [False, True])
def test_searches_and_others(ahead: bool):
    world = World(blocks=64, rows=8, ahead=ahead)
    for handle in range(1, 13):
        beams = beam_search(1 + handle % 4, handle % 3 - 0.5, handle % 5 == 0) if handle % 2 else None
        world.add(
            handle, prompt=3 + handle, n=1 if beams is None else beams.width, beams=beams, max_tokens=14
        )
    world.finish()
