"""How a model that cannot be driven is refused."""

from pagewire.errors import StartupError

_WHAT = "cannot compute this model by transformers' code"


def refusal(why: str) -> StartupError:
    """Returns the error to raise."""
    return StartupError(_WHAT, why, "serve a family of docs/models.md")


def first_line(error: Exception) -> str:
    """Returns the first line of what an exception says."""
    return next(iter(str(error).splitlines()), "")
