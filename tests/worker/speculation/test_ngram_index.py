"""The index of a growing text, against a search of the whole text."""

import random

import pytest

from worker.speculation import lookup
from worker.speculation.lookup import LONG, SHORT, NgramIndex


def find_in(text: list[int], step: int) -> list[int]:
    """What the index finds after each `step` tokens of the text."""
    index, found = NgramIndex(), []
    for end in range(step, len(text) + 1, step):
        index.extend(end, lambda start, stop: text[start:stop])
        found.append(index.find())
    return found


def occurs(text: list[int], size: int) -> list[int]:
    """The places behind earlier occurrences of the last tokens of a text."""
    return [end for end in range(size, len(text)) if text[end - size : end] == text[-size:]]


@pytest.mark.parametrize("step", [1, 2, 7])
@pytest.mark.parametrize("vocabulary", [2, 5, 40])
def test_an_occurrence_is_found_where_there_is_one(step: int, vocabulary: int) -> None:
    draw = random.Random(vocabulary)
    text = [draw.randrange(vocabulary) for _ in range(400)]
    for number, found in enumerate(find_in(text, step), start=1):
        known = text[: number * step]
        if long := occurs(known, LONG):
            assert found in long
        elif short := occurs(known, SHORT):
            assert found in short
        else:
            assert found == 0


def test_the_latest_occurrence_is_taken() -> None:
    assert find_in([1, 2, 8, 1, 2, 9, 1, 2], 8) == [5]


def test_a_match_goes_on_beside_later_ones() -> None:
    """What repeats ten tokens is followed through runs that occurred again in between."""
    first = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    text = [*first, 20, 3, 4, 5, 6, 30, *first]
    assert find_in(text, 1)[-1] == 10 and find_in(text, 1)[-4] == 7


def test_a_long_text_is_indexed_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MOST_TOKENS", 6)
    text = [1, 2, 3, 1, 2, 9, 8, 7, 1, 2]
    assert find_in(text, 10) == [5]
    assert find_in([1, 2, 3, 9, 8, 7, 6, 5, 1, 2], 10) == [0]


def test_the_work_per_token_does_not_grow() -> None:
    """Tokens that are read for each new one, in a text that never repeats."""
    reads: list[int] = []
    index, text = NgramIndex(), list(range(3000))

    def read(start: int, stop: int) -> list[int]:
        reads.append(stop - start)
        return text[start:stop]

    for end in range(1, len(text) + 1):
        index.extend(end, read)
        index.find()
    assert max(reads) <= LONG + 1 and len(reads) <= 3 * len(text)
