"""Command lines made from configuration classes.

Every field is a flag, an environment variable and a key of a configuration file. A value comes from the first
of these that has it: flag, PAGEWIRE_NAME, file, default. Unknown names are errors.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pagewire.flags.command_line import Parser
from pagewire.flags.errors import UsageError
from pagewire.flags.flag import PREFIX, Flag, flags_of
from pagewire.flags.sources import from_environment, from_file

__all__ = ["Flag", "UsageError", "flags_of", "forget_environment", "parse", "to_arguments"]

C = TypeVar("C")


def parse(
    config_class: type[C],
    arguments: Sequence[str],
    *,
    command: str,
    environment: Mapping[str, str] = os.environ,
) -> C:
    """Returns a configuration from the arguments of `pagewire COMMAND`. Raises UsageError.

    `--help` and `--help-all` print the help and raise SystemExit(0).
    """
    flags = flags_of(config_class)
    given = Parser(config_class, flags, command).given(arguments)
    file = given.pop("config", None) or environment.get(PREFIX + "CONFIG")
    values: dict[str, Any] = {}
    if file:
        values.update(from_file(Path(file), flags))
    values.update(from_environment(environment, flags))
    return config_class(**(values | given))


def to_arguments(config: Any, config_class: type[Any]) -> list[str]:
    """Returns the flags that pass a configuration to a child: the fields of `config_class` for which `config`
    has another value than the default."""
    arguments: list[str] = []
    for flag in flags_of(config_class).values():
        value = getattr(config, flag.name, flag.default)
        if value == flag.default:
            continue
        if flag.kind is bool:
            arguments.append(flag.option if value else flag.negative)
        else:
            arguments += [f"{flag.option}={part}" for part in (value if flag.many else (value,))]
    return arguments


def forget_environment(config_class: type[Any]) -> None:
    """Removes the variables of `config_class` from this process's environment.

    Called by a process that passes its configuration to its children as flags: otherwise a child would read a
    variable that a flag of its parent has overridden.
    """
    for name in [field.name for field in dataclasses.fields(config_class)] + ["config"]:
        os.environ.pop(PREFIX + name.upper(), None)
