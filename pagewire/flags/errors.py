"""Errors in a command line, an environment variable or a configuration file."""

import difflib
from collections.abc import Iterable

from pagewire.errors import StartupError


class UsageError(StartupError):
    """The command line, the environment or the configuration file is wrong; exit code 2."""


def did_you_mean(word: str, *candidates: Iterable[str]) -> str:
    """Returns a hint to append to an error, from the first list with a similar word."""
    for names in candidates:
        if close := difflib.get_close_matches(word, list(names), n=1):
            return f" (did you mean {close[0]}?)"
    return ""
