"""Ctrl-C in the middle of a stream."""

import os
import signal
from collections.abc import Iterator

import pytest

from pagewire.cli.terminal import interruptible


def test_without_one_nothing_changes():
    before = signal.getsignal(signal.SIGINT)
    assert list(interruptible([1, 2, 3])) == [1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is before


def test_one_that_was_swallowed_comes_with_the_next_item():
    seen = []

    def items() -> Iterator[int]:
        yield 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        yield 2

    with pytest.raises(KeyboardInterrupt):
        for item in interruptible(items()):
            seen.append(item)
    assert seen == [1]
