"""What a group of ranks has together."""

import pytest

from engine_core.io.worker_group import check_same_step, combine_ready
from engine_core.io.worker_process import WorkerDied
from pagewire.internal.v1.engine_pb2 import ModelFacts
from pagewire.internal.v1.worker_pb2 import KeptCache, Ready, StepResult
from pagewire.ipc.columns import pack_u32


def ready(**fields: object) -> Ready:
    facts = ModelFacts(architecture="Fake", dtype="bfloat16", max_model_len=512, weight_bytes=1000)
    return Ready(
        model=facts,
        **{"num_blocks": 64, "num_host_blocks": 8, "kv_cache_bytes": 50, "device": "cpu"} | fields,  # type: ignore[arg-type]
    )


def test_a_group_of_one_reports_what_its_rank_reports() -> None:
    assert combine_ready([ready(num_threads=4)]) == ready(num_threads=4)


def test_blocks_are_those_of_the_smallest_rank_and_bytes_add_up() -> None:
    combined = combine_ready(
        [
            ready(num_blocks=64, num_host_blocks=3, prefill_us_per_token=2.0, num_threads=4),
            ready(num_blocks=60, num_host_blocks=9, swap_us_per_block=7.0, num_threads=2),
        ]
    )
    assert (combined.num_blocks, combined.num_host_blocks) == (60, 3)
    assert (combined.kv_cache_bytes, combined.model.weight_bytes, combined.num_threads) == (100, 2000, 6)
    assert (combined.prefill_us_per_token, combined.swap_us_per_block) == (2.0, 7.0)


@pytest.mark.parametrize(
    "change", [{"device": "cuda"}, {"depends_on_prompt_len": True}, {"has_states": True}]
)
def test_ranks_that_differ_are_no_group(change: dict[str, object]) -> None:
    with pytest.raises(WorkerDied, match="disagree"):
        combine_ready([ready(), ready(**change)])


def test_ranks_that_know_different_blocks_begin_with_none() -> None:
    """But with their secret: a core that was killed has told some of them more."""
    kept = [KeptCache(secret=b"secret", blocks=pack_u32([block]), contents=bytes(16)) for block in (3, 4)]
    assert combine_ready([ready(kept_cache=kept[0])] * 2).kept_cache == kept[0]
    assert combine_ready([ready(kept_cache=each) for each in kept]).kept_cache == KeptCache(secret=b"secret")


def test_results_of_one_step() -> None:
    first = StepResult(step=3, token_ids=pack_u32([5, 6]))
    check_same_step(first, first)
    check_same_step(first, StepResult(step=3))
    with pytest.raises(ValueError, match="rank 0 has executed step 3"):
        check_same_step(first, StepResult(step=4))
    with pytest.raises(ValueError, match="tokens are not those of rank 0"):
        check_same_step(first, StepResult(step=3, token_ids=pack_u32([5, 7])))
