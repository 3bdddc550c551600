"""What counts as a panic of the grammar library: its own exceptions do, and ours and Python's do not."""

import pytest

from pagewire.limits import is_panic


class PanicException(BaseException):
    """As libraries in Rust raise it: no Exception, and of a class that cannot be imported."""


@pytest.mark.parametrize(
    ("error", "panics"),
    [
        (PanicException("index out of bounds"), True),
        (ValueError("PanicException"), False),
        (KeyboardInterrupt(), False),
        (SystemExit(1), False),
        (MemoryError(), False),
    ],
)
def test_panics(error: BaseException, panics: bool):
    """What would end the process for another reason does so."""
    assert is_panic(error) is panics
