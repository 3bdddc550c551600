"""Whole tokens out of columns and into columns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.ipc.columns import pack_u32
from pagewire.ipc.logprob_columns import check, join, join_tokens, num_tokens, pick, split
from tests.logprob_columns import Scored, pack_f32, put_together, take_apart

NUMBER = st.integers(0, 999)
CANDIDATES = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=3)


@st.composite
def token_lists(draw: st.DrawFn) -> list[Scored]:
    """Some with candidates, some without."""
    tokens = []
    for _ in range(draw(st.integers(0, 6))):
        candidates = draw(CANDIDATES)
        ids, values, ranks = zip(*candidates, strict=True) if candidates else ((), (), ())
        tokens.append(
            Scored(-float(draw(NUMBER)), draw(NUMBER), list(ids), [-float(v) for v in values], list(ranks))
        )
    return tokens


@given(token_lists(), st.data())
def test_picks_whole_tokens(tokens: list[Scored], data: st.DataObject) -> None:
    columns = put_together(tokens)
    check(columns)
    assert num_tokens(columns) == len(tokens)
    places = data.draw(st.lists(st.integers(0, len(tokens) - 1), unique=True)) if tokens else []
    places.sort()
    picked = pick(columns, places)
    check(picked)
    assert take_apart(picked) == [tokens[place] for place in places]


@given(st.lists(token_lists(), max_size=4))
def test_joins_what_was_apart(parts: list[list[Scored]]) -> None:
    """Also where some parts have no candidates at all, and so no column for their number."""
    joined = join([put_together(part) for part in parts])
    check(joined)
    assert take_apart(joined) == [token for part in parts for token in part]


@given(token_lists().filter(bool), st.data())
def test_tokens_one_by_one(tokens: list[Scored], data: st.DataObject) -> None:
    each = list(split(put_together(tokens)))
    start = data.draw(st.integers(0, len(each) - 1))
    joined = join_tokens(each[start:])
    check(joined)
    assert take_apart(joined) == tokens[start:]


def test_nothing_is_copied_without_need() -> None:
    columns = put_together([Scored(-1, 1), Scored(-2, 2)])
    assert pick(columns, range(2)) is columns
    assert join([columns]) is columns


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": pack_f32([-1, -2]), "ranks": pack_u32([1])},
        {"logprobs": b"abc", "ranks": b"abc"},
        {"logprobs": pack_f32([-1]), "ranks": pack_u32([1]), "candidate_counts": pack_u32([2])},
        {"logprobs": pack_f32([-1]), "ranks": pack_u32([1]), "candidate_token_ids": pack_u32([2])},
        {"logprobs": pack_f32([-1]), "ranks": pack_u32([1]), "candidate_counts": pack_u32([0, 0])},
    ],
)
def test_columns_that_do_not_fit(fields: dict[str, bytes]) -> None:
    with pytest.raises(ValueError):
        check(LogprobColumns(**fields))  # type: ignore[arg-type]
