"""How long drafts are, from what was accepted lately."""

import random

from worker.speculation.sources import LONGEST_PAUSE, DraftLengths


def test_what_is_accepted_makes_drafts_longer() -> None:
    lengths = DraftLengths(8)
    assert lengths.length(3, 10) == 4
    lengths.judge(3, 15, 4, 4)
    assert lengths.length(3, 15) == 8
    lengths.judge(3, 24, 8, 8)
    assert lengths.length(3, 24) == 8, "not beyond the bound"
    lengths.judge(3, 26, 8, 1)
    assert lengths.length(3, 26) == 6
    lengths.judge(3, 28, 6, 1)
    assert lengths.length(3, 28) == 5
    lengths.judge(3, 30, 5, 0)
    assert lengths.length(3, 30) == 2
    assert lengths.length(4, 28) == 4, "rows do not share"


def test_wrong_drafts_are_made_ever_less_often() -> None:
    """A row of a thousand tokens, each from a step of its own."""
    lengths, drafted = DraftLengths(8), 0
    for num_tokens in range(1000):
        if length := lengths.length(0, num_tokens):
            drafted += length
            lengths.judge(0, num_tokens + 1, length, 0)
    assert drafted < 40
    assert lengths.length(0, 1000 + LONGEST_PAUSE) == 1
    lengths.judge(0, 1100, 1, 1)
    lengths.judge(0, 1103, 2, 0)
    assert lengths.length(0, 1103) == 1, "one accepted token ends the long pauses"


def test_two_wrong_drafts_are_no_reason_for_a_pause() -> None:
    """Of good drafts, every fifth may be wrong from its first token on."""
    lengths = DraftLengths(4)
    for num_tokens in (6, 7):
        lengths.judge(0, num_tokens, 4, 0)
        assert lengths.length(0, num_tokens) > 0
    lengths.judge(0, 8, 1, 0)
    assert lengths.length(0, 9) == 0 and lengths.length(0, 10) == 1


def test_drafts_that_are_mostly_right_stay_long() -> None:
    """Tokens that are right with a probability of 0.8: steps of a row that drafts, and their drafts."""
    lengths, draw, num_tokens, steps, drafted, paused = DraftLengths(4), random.Random(2), 0, 0, 0, 0
    while num_tokens < 2000:
        length, accepted = lengths.length(0, num_tokens), 0
        while accepted < length and draw.random() < 0.8:
            accepted += 1
        num_tokens, steps, drafted = num_tokens + accepted + 1, steps + 1, drafted + length
        paused += not length
        if length:
            lengths.judge(0, num_tokens, length, accepted)
    assert paused < steps / 10 and drafted > 2.7 * steps


def test_a_row_that_begins_again() -> None:
    lengths = DraftLengths(2)
    assert lengths.length(0, 5) == 2
    for _ in range(3):
        lengths.judge(0, 6, 2, 0)
    assert lengths.length(0, 6) == 0
    lengths.remove_row(0)
    assert lengths.length(0, 6) == 2
