"""How long drafts are, from what was accepted lately."""

from worker.speculation.draft_lengths import LONGEST_PAUSE, DraftLengths


def test_what_is_accepted_makes_drafts_longer() -> None:
    lengths = DraftLengths(8)
    assert lengths.length(3, 10) == 4
    lengths.judge(3, 15, 4, 4)
    assert lengths.length(3, 15) == 8
    lengths.judge(3, 24, 8, 8)
    assert lengths.length(3, 24) == 8, "not beyond the bound"
    lengths.judge(3, 26, 8, 1)
    assert lengths.length(3, 26) == 4
    lengths.judge(3, 28, 4, 1)
    assert lengths.length(3, 28) == 2
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
    assert lengths.length(0, 1105) == 1, "one accepted token ends the long pauses"


def test_a_row_that_begins_again() -> None:
    lengths = DraftLengths(2)
    assert lengths.length(0, 5) == 2
    lengths.judge(0, 6, 2, 0)
    assert lengths.length(0, 6) == 0
    lengths.remove_row(0)
    assert lengths.length(0, 6) == 2
