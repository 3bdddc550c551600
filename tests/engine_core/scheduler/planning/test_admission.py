"""A sequence that waits for blocks is not examined in every step, and begins when there are enough."""

import pytest

from engine_core.request import Sequence
from tests.engine_core.world import World


def test_a_prefix_is_not_looked_for_while_blocks_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(blocks=16, block_size=4, rows=8)
    world.add(1, prompt=20, max_tokens=12, ignore_eos=True)
    world.step()
    waiting = world.add(2, prompt=40, max_tokens=2)
    scheduler, asked = world.scheduler, list[Sequence]()
    find = scheduler.prefix_cache.find

    def watched(sequence: Sequence) -> list[int]:
        asked.append(sequence)
        return find(sequence)

    monkeypatch.setattr(scheduler.prefix_cache, "find", watched)
    world.step(8)
    assert not waiting.scheduled and asked == waiting.sequences, "once, and not in each step"
    world.finish()
    assert waiting.scheduled
