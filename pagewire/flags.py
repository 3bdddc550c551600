"""Command lines made from configurations.

Every field of a configuration is a flag, an environment variable and a key of a configuration
file. A value comes from the first of these that has it: flag, PAGEWIRE_NAME, file, default. What
nobody knows is an error that names it.
"""

import argparse
import dataclasses
import difflib
import os
import re
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from pagewire import config as configs
from pagewire.errors import StartupError

C = TypeVar("C")

_PREFIX = "PAGEWIRE_"
_RESERVED = {"PAGEWIRE_STATUS_FD", "PAGEWIRE_PARENT_PID"}
_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$")
"""Kubernetes adds such variables for every service; one called `pagewire` makes PAGEWIRE_PORT_..."""
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
_ALL = (
    configs.ServeConfig,
    configs.WorkerConfig,
    configs.GenerateConfig,
    configs.ChatConfig,
    configs.HealthConfig,
)


class UsageError(StartupError):
    """The command line, the environment or the configuration file is wrong; exit code 2."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """A field of a configuration, seen from the command line."""

    name: str
    hint: Any
    default: Any
    help: str
    common: bool
    metavar: str | None
    positional: bool
    at_least: float | None
    at_most: float | None

    @property
    def option(self) -> str:
        """--max-num-seqs for max_num_seqs."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """PAGEWIRE_MAX_NUM_SEQS for max_num_seqs."""
        return _PREFIX + self.name.upper()

    @property
    def negative(self) -> str:
        """What switches a boolean off: --no-x for --x, and --x for --no-x."""
        return "--" + self.option[5:] if self.option.startswith("--no-") else "--no-" + self.option[2:]

    @property
    def kind(self) -> Any:
        """The type without `| None`."""
        if get_origin(self.hint) is types.UnionType:
            return next(part for part in get_args(self.hint) if part is not types.NoneType)
        return self.hint

    @property
    def many(self) -> bool:
        """Whether it may be repeated."""
        return get_origin(self.kind) is tuple

    def convert(self, value: object) -> Any:
        """A value of the field's type from text or from what a file holds. Raises ValueError."""
        kind = self.kind
        if self.many:
            return tuple(str(part) for part in value) if isinstance(value, list) else (str(value),)
        if get_origin(kind) is Literal:
            return _choice(str(value), get_args(kind))
        if kind is bool:
            return _boolean(value)
        if kind is str:
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return str(value)
            raise ValueError(f"{value!r} is not text")
        return self._number(value)

    def _number(self, value: object) -> int | float:
        noun = "an integer" if self.kind is int else "a number"
        whole = isinstance(value, float) and value.is_integer()
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{value!r} is not {noun}")
        if self.kind is int and isinstance(value, float) and not whole:
            raise ValueError(f"{value!r} is not {noun}")
        try:
            number: int | float = self.kind(value)
        except ValueError:
            raise ValueError(f"{value!r} is not {noun}") from None
        if self.at_least is not None and not number >= self.at_least:
            raise ValueError(f"{number} is below {self.at_least}")
        if self.at_most is not None and not number <= self.at_most:
            raise ValueError(f"{number} is above {self.at_most}")
        return number


def flags_of(config_class: type[Any]) -> dict[str, Flag]:
    """The flags of a configuration, by field name, in the order of its fields."""
    hints = get_type_hints(config_class)
    decided: frozenset[str] = getattr(config_class, "DECIDED", frozenset())
    return {
        field.name: Flag(name=field.name, hint=hints[field.name], default=field.default, **field.metadata)
        for field in dataclasses.fields(config_class)
        if field.name not in decided
    }


def parse(
    config_class: type[C],
    arguments: Sequence[str],
    *,
    command: str,
    environment: Mapping[str, str] = os.environ,
) -> C:
    """A configuration from the arguments of `pagewire COMMAND`. Raises UsageError.

    `--help` and `--help-all` print what they say and raise SystemExit(0).
    """
    flags = flags_of(config_class)
    given = _Parser(config_class, flags, command).given(arguments)
    file = given.pop("config", None) or environment.get(_PREFIX + "CONFIG")
    values: dict[str, Any] = {}
    if file:
        values.update(_from_file(Path(file), flags))
    values.update(_from_environment(environment, flags))
    return config_class(**(values | given))


def to_arguments(config: Any, config_class: type[Any]) -> list[str]:
    """The flags that give a child its configuration: fields of `config_class` that `config` has
    with a value that is not the child's default."""
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
    """Removes the variables that `config_class` reads from this process's environment.

    A process that passes its configuration to its children as flags does this first: otherwise a
    child would read a variable that a flag of its parent has overruled.
    """
    for flag in flags_of(config_class).values():
        os.environ.pop(flag.variable, None)
    os.environ.pop(_PREFIX + "CONFIG", None)


def _from_file(path: Path, flags: Mapping[str, Flag]) -> dict[str, Any]:
    import yaml  # 20 ms that only a start with a file shall pay

    what = f"cannot use the configuration file {path}"
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
        raise UsageError(what, "it does not hold NAME: VALUE pairs")
    known = _known_names()
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise UsageError(what, f"unknown key {key!r}{_did_you_mean(name, flags, known)}")
        if name in flags:  # else another process's: one file may configure them all
            try:
                values[name] = flags[name].convert(value)
            except ValueError as error:
                raise UsageError(what, f"{key}: {error}") from None
    return values


def _from_environment(environment: Mapping[str, str], flags: Mapping[str, Flag]) -> dict[str, Any]:
    ours = [flag.variable for flag in flags.values()]
    known = {_PREFIX + name.upper() for name in _known_names()} | {_PREFIX + "CONFIG"} | _RESERVED
    values = {}
    for variable in sorted(environment):
        if not variable.startswith(_PREFIX):
            continue
        if variable not in known:
            if _SERVICE_LINK.search(variable):
                continue
            raise UsageError(
                f"unknown environment variable {variable}{_did_you_mean(variable, ours, known)}",
                todo="every flag --some-name has a variable PAGEWIRE_SOME_NAME; unset the others",
            )
        name = variable.removeprefix(_PREFIX).lower()
        if name in flags:
            try:
                values[name] = flags[name].convert(environment[variable])
            except ValueError as error:
                raise UsageError(
                    f"wrong environment variable {variable}",
                    str(error),
                    "Kubernetes sets it for a service of this name: use enableServiceLinks: false"
                    if "://" in environment[variable] and name == "port"
                    else "",
                ) from None
    return values


class _Parser(argparse.ArgumentParser):
    """argparse with our errors, and with flags that leave no trace when they are not given."""

    def __init__(self, config_class: type[Any], flags: Mapping[str, Flag], command: str) -> None:
        super().__init__(
            prog=f"pagewire {command}",
            description=(config_class.__doc__ or "").split(": ", 1)[-1],
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
        )
        self._config_flags = flags
        for flag in flags.values():
            if flag.positional:
                self.add_argument(flag.name, nargs="?", type=_converter(flag), metavar=flag.metavar)
            if flag.kind is bool:
                self.add_argument(flag.option, dest=flag.name, action="store_true")
                self.add_argument(flag.negative, dest=flag.name, action="store_false")
            elif flag.many:
                self.add_argument(flag.option, dest=flag.name, action="append")
            else:
                self.add_argument(flag.option, dest=flag.name, type=_converter(flag))
        self.add_argument("--config")
        self.add_argument("--help", "-h", action="store_true", dest="_help")
        self.add_argument("--help-all", action="store_true", dest="_help_all")

    def given(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The values on the command line; raises UsageError, and SystemExit(0) after printing help."""
        namespace, unknown = self.parse_known_args(arguments)
        values = dict(vars(namespace))
        short, everything = values.pop("_help", False), values.pop("_help_all", False)
        if short or everything:
            print(help_text(self.prog, self.description or "", self._config_flags.values(), everything))
            raise SystemExit(0)
        if unknown:
            wrong = unknown[0].split("=", 1)[0]
            self.error(f"unknown argument {wrong!r}{_did_you_mean(wrong, self._option_string_actions)}")
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        what = re.sub(r"^argument (\S+?)(/\S+)?: ", r"\1: ", message)
        raise UsageError(what, todo=f"see: {self.prog} --help")


def help_text(prog: str, description: str, flags: Iterable[Flag], everything: bool) -> str:
    """What --help (the common flags, one screen) and --help-all (every flag) print."""
    flags = list(flags)
    words = " ".join(f"[{flag.metavar}]" for flag in flags if flag.positional)
    rows = [(_usage_of(flag), flag.help + _default_of(flag)) for flag in flags if everything or flag.common]
    rows.append(("--config FILE", "YAML or TOML file with the same names"))
    rows.append(("--help, --help-all", "the common flags, every flag"))
    width = max(len(left) for left, _ in rows)
    lines = [f"usage: {prog} {words}{' ' if words else ''}[--flag VALUE ...]", "", _sentence(description), ""]
    lines += [f"  {left:<{width}}  {right}" for left, right in rows]
    lines += ["", "A flag --some-name may also be given as PAGEWIRE_SOME_NAME or in the file."]
    return "\n".join(lines)


def _usage_of(flag: Flag) -> str:
    if flag.positional and flag.metavar:
        return flag.metavar
    if flag.kind is bool:
        return flag.option if flag.option.startswith("--no-") else "--[no-]" + flag.option[2:]
    if get_origin(flag.kind) is Literal:
        return f"{flag.option} {'|'.join(get_args(flag.kind))}"
    words = {int: "N", float: "X"}
    return f"{flag.option} {flag.metavar or words.get(flag.kind, 'NAME')}"


def _default_of(flag: Flag) -> str:
    if flag.default in (None, False, "", ()) or flag.positional:
        return ""
    if flag.default is True:
        return " [on]"
    return f" [{flag.default}]"


def _sentence(docstring: str) -> str:
    text = " ".join(docstring.split())
    return text[:1].upper() + text[1:]


def _converter(flag: Flag) -> Any:
    def convert(text: str) -> Any:
        try:
            return flag.convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _choice(value: str, choices: Sequence[str]) -> str:
    if value in choices:
        return value
    raise ValueError(f"{value!r} is none of {', '.join(choices)}{_did_you_mean(value, choices)}")


def _boolean(value: object) -> bool:
    text = str(value).lower()
    if text in _TRUE | _FALSE:
        return text in _TRUE
    raise ValueError(f"{value!r} is neither true nor false")


def _known_names() -> set[str]:
    return {field.name for config_class in _ALL for field in dataclasses.fields(config_class)}


def _did_you_mean(word: str, *candidates: Iterable[str]) -> str:
    """Words to add to an error; the first of the lists that has something similar is used."""
    for names in candidates:
        if close := difflib.get_close_matches(word, list(names), n=1):
            return f" (did you mean {close[0]}?)"
    return ""
