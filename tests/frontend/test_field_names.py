"""Errors about fields, told by another protocol's names."""

import pytest

from frontend.errors import InvalidRequest, ModelNotFound
from frontend.field_names import renamed, renaming

NAMES = {"inputs": "texts", "inputs[0]": "input", "query.text": "query"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("inputs[0].text", "input.text"),
        ("inputs[1].text", "texts[1].text"),
        ("query.text", "query"),
        ("query", "query"),
        ("priority", "priority"),
        ("", ""),
    ],
)
def test_the_longest_known_beginning_of_a_path_counts(path, expected):
    assert renamed(path, NAMES) == expected


def test_an_error_of_the_block_gets_the_other_names():
    with pytest.raises(InvalidRequest) as caught, renaming(NAMES):
        raise InvalidRequest({"inputs[0]": "must not be empty", "priority": "is too large"})
    assert caught.value.violations == {"input": "must not be empty", "priority": "is too large"}
    assert caught.value.message == "input: must not be empty; priority: is too large"


def test_an_error_without_fields_stays_as_it_is():
    error = ModelNotFound("x", "model")
    error.violations, before = {}, error.message
    with pytest.raises(ModelNotFound) as caught, renaming(NAMES):
        raise error
    assert caught.value is error and error.message == before
