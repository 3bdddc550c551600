"""Errors about fields of a request of ours, told by the names that another protocol has for them."""

from collections.abc import Mapping

from frontend.errors import ServiceError


def renamed(path: str, names: Mapping[str, str]) -> str:
    """Returns a field's path in the other protocol. names: of our fields, of which the longest that the path
    begins with counts; a path without any stays."""
    stem = path
    while stem:
        if stem in names:
            return names[stem] + path[len(stem) :]
        stem = stem[: max(stem.rfind("."), stem.rfind("["), 0)]
    return path


def translated(error: ServiceError, names: Mapping[str, str]) -> ServiceError:
    """Returns the error with the other protocol's names for the fields."""
    if error.violations:
        error.violations = {renamed(path, names): text for path, text in error.violations.items()}
        error.message = "; ".join(f"{name}: {text}" for name, text in error.violations.items())
    return error
