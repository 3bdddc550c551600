"""Log-probabilities are kept by position, up to a bound."""

import pytest

from engine_core import score_history
from engine_core.score_history import ScoreHistory
from pagewire.ipc.columns import pack_u32
from pagewire.ipc.logprob_columns import TokenColumns
from tests.logprob_columns import Scored, pack_f32, take_apart


def tokens(*logprobs: int) -> list[TokenColumns]:
    return [TokenColumns(pack_f32([float(-each)]), pack_u32([each])) for each in logprobs]


def test_what_was_added_is_there_by_position() -> None:
    history = ScoreHistory(3)
    history.add(3, tokens(3, 4))
    history.add(5, tokens(5))
    columns = history.between(4, 6)
    assert columns is not None and take_apart(columns) == [Scored(-4, 4), Scored(-5, 5)]
    for start, end in ((2, 4), (4, 7), (4, 4)):
        assert history.between(start, end) is None


def test_after_a_gap_it_begins_anew() -> None:
    history = ScoreHistory(0)
    history.add(0, tokens(0, 1))
    history.add(4, tokens(4))
    assert history.between(0, 2) is None and history.between(4, 5) is not None


def test_there_is_room_for_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_history, "MOST_BYTES", 3 * (256 + 8))
    history = ScoreHistory(0)
    history.add(0, tokens(0, 1, 2, 3))
    assert history.between(0, 4) is None and history.between(3, 4) is not None
    history.add(4, tokens(4, 5))
    assert history.between(3, 6) is not None
