"""Errors about fields of a request, told by the names that another protocol has for the fields."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from frontend.errors import ServiceError

Names = dict[str, str]
"""The other protocol's names, by the paths of fields in requests of pagewire.v1."""


def renamed(path: str, names: Mapping[str, str]) -> str:
    """Returns a field's path in the other protocol: of the paths in `names` the longest that it begins with
    counts, and a path without any stays."""
    stem = path
    while stem:
        if stem in names:
            return names[stem] + path[len(stem) :]
        stem = stem[: max(stem.rfind("."), stem.rfind("["), 0)]
    return path


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Gives a ServiceError that is raised within the block the other protocol's names for its fields."""
    try:
        yield
    except ServiceError as error:
        if error.violations:
            error.violations = {renamed(path, names): text for path, text in error.violations.items()}
            error.message = "; ".join(f"{name}: {text}" for name, text in error.violations.items())
        raise
