"""The functions of `pagewire chat --tools FILE`."""

import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagewire.client.tools import FunctionTool, function_of, to_tool
from pagewire.flags import UsageError

_MODULE = "pagewire_tools"


def functions_in(file: str) -> list[Callable[..., Any]]:
    """Returns the public functions that a Python file defines, those made by pagewire.tool too; none for no
    file. Raises UsageError for a file that cannot be run, has none, or has one whose annotations have no
    schema."""
    if not file:
        return []
    try:
        names = runpy.run_path(str(Path(file).expanduser()), run_name=_MODULE)
    except Exception as error:
        raise UsageError(f"--tools: {file}: {error}") from error
    functions: list[Callable[..., Any]] = [
        value for name, value in names.items() if not name.startswith("_") and _is_own_function(value)
    ]
    if not functions:
        raise UsageError(f"--tools: {file} defines no public function")
    for function in functions:
        try:
            to_tool(function)
        except TypeError as error:
            raise UsageError(f"--tools: {file}: {error}") from error
    return functions


def _is_own_function(value: object) -> bool:
    """Returns whether a name of the file is a function that the file defines."""
    function = function_of(value) if isinstance(value, FunctionTool) else value
    return inspect.isfunction(function) and function.__module__ == _MODULE
