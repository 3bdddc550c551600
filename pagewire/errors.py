"""Errors that are shown to users.

PagewireError
├── StartupError      a process cannot start; has what, why and what to do
│   └── UsageError    flag, variable or configuration file (pagewire.flags)
└── RpcError          a call of a client failed (pagewire_client.errors)
"""

from pathlib import Path
from shlex import quote

_SOURCES = Path(__file__).parents[1] / "pyproject.toml"
"""Where there is one, this is not an installation from a wheel."""

_MOST = 1000
"""Maximum number of characters of each part of an error."""


def install_hint(extra: str) -> str:
    """Returns what to do when a dependency of an extra is missing."""
    if _SOURCES.exists():
        return f"in pagewire's source tree: pip install '.[{extra}]'"
    from importlib.metadata import PackageNotFoundError, requires  # takes 20 ms

    try:
        # An installation knows what its extras require; no index has this project.
        return f"pip install {' '.join(map(quote, _required_by(extra, requires('pagewire') or [])))}"
    except PackageNotFoundError:
        return f"pip uninstall pagewire-client, then, in pagewire's source tree: pip install '.[{extra}]'"


def _required_by(extra: str, requirements: list[str]) -> list[str]:
    """Returns the requirements of an extra, and those of the extras that it is made of."""
    found = []
    for each in requirements:
        needed = each.partition(";")[0].strip()
        if f'extra == "{extra}"' not in each:
            continue
        if needed.startswith("pagewire["):
            found += _required_by(needed.removeprefix("pagewire[").rstrip("]"), requirements)
        else:
            found.append(needed)
    return found


class PagewireError(Exception):
    """Base of the errors that this project raises on purpose.

    todo: what the user can do about it; may be empty.
    """

    todo: str = ""


class StartupError(PagewireError):
    """A process cannot start. Shown to the user as three short lines, never as a traceback.

    what: what happened ("cannot load the model").
    why:  the cause, naming the file, tensor, flag or field.
    todo: what the user can do about it.
    may_pass: a process was killed on the way, so that another start may succeed.
    """

    def __init__(self, what: str, why: str = "", todo: str = "", *, may_pass: bool = False) -> None:
        what, why, todo = map(one_line, (what, why, todo))
        super().__init__(what, why, todo)
        self.what, self.why, self.todo = what, why, todo
        self.may_pass = may_pass

    def __str__(self) -> str:
        return ": ".join(part for part in (self.what, self.why) if part)


def one_line(text: str) -> str:
    """Escapes and truncates text that may come from an untrusted file: no line breaks, no escape sequences,
    nothing that UTF-8 lacks."""
    if len(text) > _MOST:
        text = f"{text[:_MOST]}..."
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
