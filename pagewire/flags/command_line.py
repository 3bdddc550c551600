"""Command-line flags: argparse with UsageError and a compact help."""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NoReturn, get_args, get_origin

from pagewire.config import MAX_COUNT
from pagewire.flags.flag import Flag, UsageError, did_you_mean
from pagewire.flags.synonyms import COUNTERPARTS, translate


class Parser(argparse.ArgumentParser):
    """Parses flags; flags that are not given are absent from the result."""

    def __init__(self, config_class: type[Any], flags: Mapping[str, Flag], command: str) -> None:
        super().__init__(
            prog=f"pagewire {command}",
            description=(config_class.__doc__ or "").split(": ", 1)[-1],
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
        )
        self._config_flags = flags
        self._first = next((flag for flag in flags.values() if flag.positional), None)
        for flag in flags.values():
            if flag.positional:
                name = "_word" if flag is self._first else flag.name
                self.add_argument(name, nargs="?", type=_converter(flag), metavar=flag.metavar)
            if flag.kind is bool:
                self.add_argument(flag.option, dest=flag.name, action="store_true")
                self.add_argument(flag.negative, dest=flag.name, action="store_false")
            elif flag.many:
                self.add_argument(flag.option, dest=flag.name, action="append", type=_converter(flag))
            else:
                self.add_argument(flag.option, dest=flag.name, type=_converter(flag))
        self.add_argument("--config")
        self.add_argument("--help", "-h", action="store_true", dest="_help")
        self.add_argument("--help-all", action="store_true", dest="_help_all")

    def given(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Returns the given values. Raises UsageError, and SystemExit(0) after printing the help."""
        arguments = translate(arguments, self._option_string_actions, tell_note)
        self._refuse_value_of_switch(arguments)
        self._refuse_with_counterpart(arguments)
        namespace, unknown = self.parse_known_args(arguments)
        values = dict(vars(namespace))
        short, everything = values.pop("_help", False), values.pop("_help_all", False)
        if short or everything:
            print(help_text(self.prog, self.description or "", self._config_flags.values(), everything))
            raise SystemExit(0)
        words = [values.pop("_word")] if "_word" in values else []
        self._take_words(words, unknown, arguments, values)
        if unknown:
            wrong = unknown[0].split("=", 1)[0]
            self.error(f"unknown argument {wrong!r}{did_you_mean(wrong, self._option_string_actions)}")
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}

    def _refuse_with_counterpart(self, arguments: Sequence[str]) -> None:
        """Raises UsageError for a flag of other servers that has a counterpart. argparse would take -hf MODEL
        for -h."""
        names = [word.partition("=")[0] for word in arguments if "--model" in self._option_string_actions]
        for name in names:
            if name in COUNTERPARTS:
                self.error(f"unknown argument {name!r}; use {COUNTERPARTS[name]}")

    def _take_words(
        self, words: list[str], unknown: list[str], arguments: Sequence[str], values: dict[str, Any]
    ) -> None:
        """Takes a word without a flag as MODEL or the like, or words as further values of the flag that they
        follow (`MODEL --served-model-name A B`). Raises UsageError for a second MODEL; others stay in
        `unknown`."""
        flag = self._first
        if words and flag is not None and flag.name not in values:
            values[flag.name] = words.pop()
        extra = words + [word for word in unknown if not word.startswith("-")]
        for many in [flag for flag in self._config_flags.values() if flag.many] if extra else ():
            if _words_behind(many.option, arguments) == extra:
                values[many.name] += [many.convert_part(word) for word in extra]
                words, unknown[:] = [], [word for word in unknown if word.startswith("-")]
                break
        if words and flag is not None:
            self.error(f"{flag.metavar or flag.option} is given twice: {values[flag.name]} and {words[0]}")

    def _refuse_value_of_switch(self, arguments: Sequence[str]) -> None:
        """Raises UsageError for `--standby 2` where `--standbys N` is a flag: 2 would be the MODEL."""
        counts = {flag.option: flag for flag in self._config_flags.values() if flag.kind is int}
        switches = {
            option
            for flag in self._config_flags.values()
            if flag.kind is bool
            for option in (flag.option, flag.negative)
        }
        words = [part for word in arguments for part in (word.split("=", 1) if word[:2] == "--" else [word])]
        for option, value in pairwise(words):
            if option in switches and option + "s" in counts and value.isdecimal():
                self.error(f"{option}: it takes no value (did you mean {option}s {value}?)")

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        what = re.sub(r"^argument (\S+?)(/\S+)?: ", r"\1: ", message)
        named = what.partition(":")[0]
        rare = any(flag.option == named and not flag.common for flag in self._config_flags.values())
        raise UsageError(what, todo=f"see: {self.prog} --help{'-all' if rare else ''}")


def tell_note(sentence: str) -> None:
    """Prints a sentence on standard error: logging is not set up yet."""
    print(f"note: {sentence}", file=sys.stderr)


def _words_behind(option: str, arguments: Sequence[str]) -> list[str]:
    """Returns the words behind the value of an option's last occurrence, up to the next flag."""
    words: list[str] = []
    inside = False
    for word in arguments:
        name, sign, _ = word.partition("=")
        if word.startswith("-"):
            inside = name == option
            words = [""] * bool(sign) if inside else words
        elif inside:
            words.append(word)
    return words[1:]


def help_text(prog: str, description: str, flags: Iterable[Flag], everything: bool) -> str:
    """Returns the text of --help (common flags, one screen) or --help-all (every flag)."""
    flags = list(flags)
    words = " ".join(f"[{flag.metavar}]" for flag in flags if flag.positional)
    rows = [(usage_of(flag), flag.help + _facts_of(flag)) for flag in flags if everything or flag.common]
    rows.append(("--config FILE", "YAML or TOML file with values of flags"))
    rows.append(("--help, --help-all", "show the common flags, or every flag"))
    width = max(len(left) for left, _ in rows)
    lines = [f"usage: {prog} {words}{' ' if words else ''}[--flag VALUE ...]", "", _sentence(description), ""]
    lines += [f"  {left:<{width}}  {right}" for left, right in rows]
    lines += ["", "A flag --some-name can also be set as PAGEWIRE_SOME_NAME or in the file."]
    return "\n".join(lines)


def usage_of(flag: Flag) -> str:
    """Returns a flag as the help shows it, with its value."""
    if flag.positional and flag.metavar:
        return flag.metavar
    if flag.kind is bool:
        return flag.option if flag.option.startswith("--no-") else "--[no-]" + flag.option[2:]
    if get_origin(flag.kind) is Literal:
        return f"{flag.option} {'|'.join(get_args(flag.kind))}"
    words = {int: "N", float: "X"}
    return f"{flag.option} {flag.metavar or words.get(flag.kind, 'NAME')}"


def _facts_of(flag: Flag) -> str:
    """Returns default and range in brackets."""
    facts = []
    if flag.default is True:
        facts.append("on")
    elif flag.default not in (None, False, "", ()) and not flag.positional:
        facts.append(str(flag.default))
    facts += filter(None, [range_of(flag)])
    return f" [{'; '.join(facts)}]" if facts else ""


def range_of(flag: Flag) -> str:
    """Returns the numbers that a flag takes, such as "0..65535" or "from 1"; "": any."""
    lowest, highest = flag.at_least, flag.at_most
    if highest is not None and highest < MAX_COUNT:
        return f"{lowest}..{highest}"
    return "" if lowest is None else f"from {lowest}"


def _sentence(docstring: str) -> str:
    text = " ".join(docstring.split())
    return text[:1].upper() + text[1:]


def _converter(flag: Flag) -> Any:
    def convert(text: str) -> Any:
        if text == argparse.SUPPRESS:  # of a positional argument that is not given
            return argparse.SUPPRESS
        try:
            return flag.convert_part(text) if flag.many else flag.convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
