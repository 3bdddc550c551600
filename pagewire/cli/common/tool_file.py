"""The functions of `pagewire chat --tools FILE`."""

import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagewire.client.tools import to_tool
from pagewire.flags import UsageError

_MODULE = "pagewire_tools"


def functions_in(file: str) -> list[Callable[..., Any]]:
    """Returns the public functions that a Python file defines; none for no file. Raises UsageError for a file
    that cannot be run, has none, or has one whose annotations have no schema."""
    if not file:
        return []
    try:
        names = runpy.run_path(str(Path(file).expanduser()), run_name=_MODULE)
    except Exception as error:
        raise UsageError(f"--tools: {file}: {error}") from error
    functions: list[Callable[..., Any]] = [
        value
        for name, value in names.items()
        if inspect.isfunction(value) and value.__module__ == _MODULE and not name.startswith("_")
    ]
    if not functions:
        raise UsageError(f"--tools: {file} defines no public function")
    for function in functions:
        try:
            to_tool(function)
        except TypeError as error:
            raise UsageError(f"--tools: {file}: {error}") from error
    return functions
