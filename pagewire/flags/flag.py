"""A configuration field as a flag, and the error of one that is wrong."""

import dataclasses
import difflib
import types
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pagewire.errors import StartupError
from pagewire.flags.synonyms import CHECKPOINT_METHODS, VALUES, integer


class UsageError(StartupError):
    """The command line, the environment or the configuration file is wrong; exit code 2."""


def did_you_mean(word: str, *candidates: Iterable[str]) -> str:
    """Returns a hint to append to an error, from the first list with a similar word."""
    for names in candidates:
        found = {_bare(name): name for name in names}
        if close := difflib.get_close_matches(_bare(word), found, n=1, cutoff=0.7):
            return f" (did you mean {found[close[0]]}?)"
    return ""


def _bare(name: str) -> str:
    """Returns a name without what all of its kind begin with, which makes any two of them similar."""
    return name.removeprefix(PREFIX).lstrip("-")


PREFIX = "PAGEWIRE_"
_PATHS = ("FILE", "FOLDER", "PATH", "MODEL")
"""Metavariables of flags that name files."""
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


@dataclasses.dataclass(frozen=True)
class Flag:
    """Name, type, default and help of a field, and the conversion of text to its value."""

    name: str
    hint: Any
    default: Any
    help: str
    common: bool
    metavar: str | None
    positional: bool
    pairs: bool
    at_least: float | None
    at_most: float | None

    @property
    def option(self) -> str:
        """--max-num-seqs for max_num_seqs."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """PAGEWIRE_MAX_NUM_SEQS for max_num_seqs."""
        return PREFIX + self.name.upper()

    @property
    def negative(self) -> str:
        """The option that disables a boolean: --no-x for --x, and --x for --no-x."""
        return "--" + self.option[5:] if self.option.startswith("--no-") else "--no-" + self.option[2:]

    @property
    def kind(self) -> Any:
        """The type without `| None`."""
        if get_origin(self.hint) is types.UnionType:
            return next(part for part in get_args(self.hint) if part is not types.NoneType)
        return self.hint

    @property
    def many(self) -> bool:
        """True if the flag may be repeated."""
        return get_origin(self.kind) is tuple

    def convert(self, value: object) -> Any:
        """Converts text, or a value from a file, to the field's type. Raises ValueError."""
        kind = self.kind
        if isinstance(value, str):
            value = VALUES.get(self.name, {}).get(value, value)
        if self.many:
            if self.pairs and isinstance(value, dict):
                value = [f"{name}={number}" for name, number in value.items()]
            return tuple(map(self.convert_part, value if isinstance(value, list | tuple) else [value]))
        if self.name == "quantization" and value in CHECKPOINT_METHODS:
            raise ValueError(f"{value!r} is a method of checkpoints, which is detected: leave out the flag")
        if get_origin(kind) is Literal:
            return _choice(str(value), get_args(kind))
        if kind is bool:
            return _boolean(value)
        if kind is str:
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return self._text(str(value))
            raise ValueError(f"{value!r} is not text")
        return self._number(value)

    def convert_part(self, value: object) -> str:
        """Converts one value of a repeatable flag. Raises ValueError."""
        text = self._text(str(value))
        if self.pairs:
            _, sign, number = text.rpartition("=")
            if not sign:
                raise ValueError(f"{text!r} is not {self.metavar}")
            self._number(number)
        return text

    def _text(self, text: str) -> str:
        """Refuses what is not UTF-8, and could be sent nowhere; the system takes such names of files."""
        if self.metavar not in _PATHS and any("\udc80" <= character <= "\udcff" for character in text):
            raise ValueError("it is not UTF-8")
        return text

    def _number(self, value: object) -> int | float:
        kind = float if self.pairs else self.kind
        noun = "an integer" if kind is int else "a number"
        whole = isinstance(value, float) and value.is_integer()
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{value!r} is not {noun}")
        if kind is int and isinstance(value, float) and not whole:
            raise ValueError(f"{value!r} is not {noun}")
        try:
            number: int | float = integer(value) if kind is int and isinstance(value, str) else kind(value)
        except ValueError:
            raise ValueError(f"{value!r} is not {noun}") from None
        if self.at_least is not None and not number >= self.at_least:
            raise ValueError(f"{number} is below {self.at_least}")
        if self.at_most is not None and not number <= self.at_most:
            raise ValueError(f"{number} is above {self.at_most}")
        return number


def flags_of(config_class: type[Any]) -> dict[str, Flag]:
    """Returns the flags of a configuration class by field name, in the order of its fields."""
    hints = get_type_hints(config_class)
    decided: frozenset[str] = getattr(config_class, "DECIDED", frozenset())
    common: frozenset[str] = getattr(config_class, "COMMON", frozenset())

    def make(field: "dataclasses.Field[Any]") -> Flag:
        facts = {**field.metadata, "common": field.metadata["common"] or field.name in common}
        return Flag(name=field.name, hint=hints[field.name], default=field.default, **facts)

    return {
        field.name: make(field) for field in dataclasses.fields(config_class) if field.name not in decided
    }


def _choice(value: str, choices: Sequence[str]) -> str:
    if value in choices:
        return value
    raise ValueError(f"{value!r} is none of {', '.join(choices)}")


def _boolean(value: object) -> bool:
    text = str(value).lower()
    if text in _TRUE | _FALSE:
        return text in _TRUE
    raise ValueError(f"{value!r} is neither true nor false")
