"""Command lines made from configuration classes.

Every field is a flag, an environment variable and a key of a configuration file. A value comes from the first
of these that has it: flag, PAGEWIRE_NAME, file, default. Unknown names are errors.
"""

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pagewire import command_config
from pagewire import config as configs
from pagewire.errors import install_hint
from pagewire.flags.command_line import Parser, tell_note
from pagewire.flags.flag import PREFIX, Flag, UsageError, did_you_mean, flags_of
from pagewire.flags.synonyms import KEY_VARIABLES, keys_of

__all__ = ["KEYS", "Flag", "UsageError", "flags_of", "forget_environment", "parse", "to_arguments"]

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
    if _PARENT_PID in environment:  # a private service, whose one client sends no key
        environment = {name: value for name, value in environment.items() if name not in KEYS}
    given = Parser(config_class, flags, command).given(arguments)
    file = given.pop("config", None) or environment.get(PREFIX + "CONFIG")
    values: dict[str, Any] = {}
    if file:
        values.update(from_file(Path(file), flags))
    values.update(from_environment(environment, flags))
    values |= given
    if "api_key" in flags and not values.get("api_key") and not values.get("auth_file"):
        values["api_key"] = keys_of(environment, tell_note)
    return config_class(**values)


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
    fields = [field.name for field in dataclasses.fields(config_class)]
    for name in [*(PREFIX + name.upper() for name in (*fields, "config")), *KEY_VARIABLES]:
        os.environ.pop(name, None)


_SEE = "see: pagewire serve --help-all"
_PARENT_PID = "PAGEWIRE_PARENT_PID"
_RESERVED = {"PAGEWIRE_STATUS_FD", _PARENT_PID, "PAGEWIRE_TOKEN"}
KEYS = (PREFIX + "API_KEY", *KEY_VARIABLES)
"""Variables with keys that calls to `pagewire serve` must send."""
_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$")
"""Variables that Kubernetes sets for every service; one called `pagewire` yields PAGEWIRE_PORT_..."""
_ALL = (
    configs.ServeConfig,
    configs.WorkerConfig,
    command_config.GenerateConfig,
    command_config.ChatConfig,
    command_config.HealthConfig,
    command_config.TopConfig,
    command_config.BenchConfig,
    command_config.RequestsConfig,
    command_config.ExplainConfig,
    command_config.CompletionConfig,
    command_config.TokenConfig,
    command_config.DrainConfig,
    command_config.ReplayConfig,
)
"""Their fields are those of all commands: one file, or one environment, may configure several."""


def from_file(path: Path, flags: Mapping[str, Flag]) -> dict[str, Any]:
    """Returns values by field name, without keys for other processes. Raises UsageError."""
    what = f"cannot use the configuration file {path}"
    try:
        import yaml  # takes 20 ms; needed with a file only
    except ModuleNotFoundError:
        raise UsageError(what, "PyYAML is not installed", install_hint("frontend")) from None
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            content: object = tomllib.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            content = yaml.safe_load(text)
        else:
            raise UsageError(what, f"{path.suffix or 'no suffix'!r} is none of .yaml, .yml and .toml")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise UsageError(what, " ".join(str(error).split())) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(what, "it does not consist of NAME: VALUE pairs")
    known = _known_names()
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise UsageError(what, f"unknown key {key!r}{did_you_mean(name, flags, known)}", _SEE)
        if name in flags:  # else of another process: one file may configure all
            try:
                values[name] = flags[name].convert(value)
            except ValueError as error:
                raise UsageError(what, f"{key}: {error}", _SEE) from None
    return values


def from_environment(environment: Mapping[str, str], flags: Mapping[str, Flag]) -> dict[str, Any]:
    """Returns values by field name, without variables for other processes. Raises UsageError."""
    ours = [flag.variable for flag in flags.values()]
    known = {PREFIX + name.upper() for name in _known_names()} | {PREFIX + "CONFIG"} | _RESERVED
    values = {}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        if variable not in known:
            if _SERVICE_LINK.search(variable):
                continue
            raise UsageError(
                f"unknown environment variable {variable}{did_you_mean(variable, ours, known)}",
                todo="every flag --some-name has a variable PAGEWIRE_SOME_NAME; unset the others",
            )
        name = variable.removeprefix(PREFIX).lower()
        if name in flags:
            try:
                values[name] = flags[name].convert(environment[variable])
            except ValueError as error:
                raise UsageError(
                    f"wrong environment variable {variable}",
                    str(error),
                    "Kubernetes sets it for a service of this name: use enableServiceLinks: false"
                    if "://" in environment[variable] and name == "port"
                    else _SEE,
                ) from None
    return values


def _known_names() -> set[str]:
    return {field.name for config_class in _ALL for field in dataclasses.fields(config_class)}
