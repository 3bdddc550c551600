"""What cores agree on."""

import pytest

from frontend.engine.client import agree, combine, difference
from pagewire.internal.v1.engine_pb2 import ModelFacts, Welcome

A = ModelFacts(architecture="A", dtype="float32", vocab_size=10, max_model_len=5, eos_token_ids=[1, 2])
B = ModelFacts(architecture="B", dtype="float32", vocab_size=10, max_model_len=6, eos_token_ids=[1])


def welcome(model: ModelFacts, **facts: int) -> Welcome:
    return Welcome(model=model, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "present", "agreed"),
    [
        (None, [], None),
        (None, [None, None], None),
        (None, [None, B], B),
        (A, [A, B], A),
        (A, [B, None], A),
        (A, [None, None], A),
        (A, [B, B], B),
        (A, [B], B),
    ],
)
def test_the_first_counts_until_all_are_there_and_none_is_like_it(known, present, agreed):
    welcomes = [None if model is None else welcome(model) for model in present]
    assert agree(known, welcomes) == agreed


def test_the_difference_in_words():
    assert difference(A, A) == ""
    assert difference(A, B) == (
        "architecture B instead of A, max_model_len 6 instead of 5, eos_token_ids [1] instead of [1, 2]"
    )


def test_limits_are_the_smallest():
    first = welcome(A, max_num_seqs=4, num_blocks=9, max_priority=1000, block_size=16)
    second = welcome(A, max_num_seqs=8, num_blocks=7, max_priority=0, block_size=8)
    both = combine([first, second], num_ranks=3)
    assert (both.max_num_seqs, both.num_blocks, both.max_priority, both.block_size) == (4, 7, 0, 16)
    assert both.parallelism.data == 3 and first.num_blocks == 9
