"""A target and a draft model that agree as often as wanted."""

from pathlib import Path

import pytest

from benchmarks.draft_pairs import write_pair
from benchmarks.speculation import Theory, requests
from tests.checkpoints import make_checkpoint
from tests.worker.fakes import Driver

SIZES = {"dtype": "bfloat16", "block_size": 16, "num_blocks": 64, "max_num_seqs": 4, "record": False}


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("part", [1, 4])
def test_the_less_noise_the_more_drafts_are_right(tmp_path: Path, part: int) -> None:
    checkpoint = make_checkpoint("llama", tmp_path / "whole", head_dim=32)
    shares = []
    for noise in (0.0, 1.0):
        target, draft = write_pair(checkpoint, tmp_path / str(noise), 1, noise, part)
        speculation = {"speculation": f"draft:{draft}", "draft_model_path": str(draft)}
        driver = Driver(target, room=3, **SIZES, **speculation)  # type: ignore[arg-type]
        driver.add(range(3, 20), 24)
        driver.run()
        shares.append(driver.num_accepted / driver.num_drafted)
    assert shares[0] == 1 and shares[1] < 0.5


def test_what_theory_expects() -> None:
    """Tokens that are right with probability 0.8, 4 at a time, at a tenth of the cost each."""
    assert Theory(4, 0.1).ratio(0.8) == pytest.approx((1 - 0.8**5) / 0.2 / 1.4)
    assert Theory(4, 0.25).ratio(0.0) == 0.5 and Theory(4, 0.0).ratio(1.0) == 5


@pytest.mark.parametrize("kind", ["repeats", "random", "greedy", "edits", "copies"])
def test_turns_are_different_and_both_services_get_the_same(kind: str) -> None:
    first = requests(kind, 3, 1, 1000)
    assert len(first) == 3 and first == requests(kind, 3, 1, 1000) != requests(kind, 3, 2, 1000)
