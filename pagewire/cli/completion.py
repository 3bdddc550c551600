"""`pagewire completion`: scripts that complete `pagewire` in a shell. They know all commands and flags, so
that no process starts when the tab key is pressed."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args, get_origin

from pagewire import cli
from pagewire.command_config import CompletionConfig
from pagewire.flags import Flag, flags_of
from pagewire.plugins import plugins

_CONFIG_HELP = "YAML or TOML file with values of flags"


class CommandFlags(NamedTuple):
    """A command with its flags."""

    name: str
    what: str
    flags: tuple[Flag, ...]


class _Option(NamedTuple):
    name: str  # with its hyphens
    help: str
    takes_value: bool
    choices: tuple[str, ...]


def bash_script(commands: Sequence[CommandFlags]) -> str:
    """Returns the script for bash: `source <(pagewire completion bash)`."""
    words, values = [], []
    for command in commands:
        options = list(_options(command))
        if options:
            words.append(f"        {command.name}) words='{' '.join(option.name for option in options)}' ;;")
        values += [
            f"        {command.name}:{option.name}) words='{' '.join(option.choices)}' ;;"
            for option in options
            if option.choices
        ]
    choices = _positional_choices(commands)
    words += [f"        {name}:) words='{' '.join(each)}' ;;" for name, each in choices.items()]
    return "\n".join(
        [
            "_pagewire() {",
            '    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=""',
            '    if [ "$COMP_CWORD" -eq 1 ]; then',
            f"        words='{' '.join(command.name for command in commands)}'",
            '        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")',
            "        return",
            "    fi",
            '    case "${COMP_WORDS[1]}:$before" in',
            *values,
            "    esac",
            '    if [ -z "$words" ] && [[ $current == -* ]]; then',
            '        case "${COMP_WORDS[1]}" in',
            *(f"    {line}" for line in words if ":)" not in line),
            "        esac",
            "    fi",
            '    if [ -z "$words" ] && [ "$COMP_CWORD" -eq 2 ]; then',
            '        case "${COMP_WORDS[1]}:" in',
            *(f"    {line}" for line in words if ":)" in line),
            "        esac",
            "    fi",
            '    if [ -n "$words" ]; then',
            '        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")',
            "    else",
            '        mapfile -t COMPREPLY < <(compgen -f -- "$current")',
            "    fi",
            "}",
            "complete -o filenames -F _pagewire pagewire",
            "",
        ]
    )


def zsh_script(commands: Sequence[CommandFlags]) -> str:
    """Returns the script for zsh: `source <(pagewire completion zsh)`."""
    lines = ["#compdef pagewire", "_pagewire() {", "    local -a commands", "    commands=("]
    lines += [f"        {_zsh(f'{command.name}:{command.what}')}" for command in commands]
    lines += ["    )", "    if (( CURRENT == 2 )); then", "        _describe command commands"]
    lines += [
        "        return",
        "    fi",
        "    local command=$words[2]",
        "    shift words",
        "    (( CURRENT-- ))",
    ]
    lines += ['    case "$command" in']
    choices = _positional_choices(commands)
    for command in commands:
        specs = []
        for option in _options(command):
            spec = f"{option.name}{'=' if option.takes_value else ''}[{_zsh_text(option.help)}]"
            if option.takes_value:
                spec += f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
            specs.append(_zsh(spec))
        rest = f"({' '.join(choices[command.name])})" if command.name in choices else "_files"
        lines += [f"        {command.name})", "            _arguments \\"]
        lines += [f"                {spec} \\" for spec in specs]
        lines += [f"                '*:argument:{rest}' ;;"]
    return "\n".join([*lines, "    esac", "}", "compdef _pagewire pagewire", ""])


def fish_script(commands: Sequence[CommandFlags]) -> str:
    """Returns the script for fish: `pagewire completion fish | source`."""
    lines = []
    choices = _positional_choices(commands)
    for command in commands:
        lines.append(
            f"complete -c pagewire -n __fish_use_subcommand -f -a {command.name} -d {_fish(command.what)}"
        )
        seen = f"complete -c pagewire -n '__fish_seen_subcommand_from {command.name}'"
        for option in _options(command):
            value = f" -x -a {_fish(' '.join(option.choices))}" if option.choices else " -r"
            line = f"{seen} -l {option.name[2:]}{value if option.takes_value else ''}"
            lines.append(f"{line} -d {_fish(option.help)}")
        if command.name in choices:
            lines.append(f"{seen} -f -a {_fish(' '.join(choices[command.name]))}")
    return "\n".join([*lines, ""])


SCRIPTS: dict[str, Callable[[Sequence[CommandFlags]], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}
"""By shell: makes the script of the commands."""


def _options(command: CommandFlags) -> Iterable[_Option]:
    """Yields the options of a command; of a switch both of its names."""
    if not command.flags:
        return
    for flag in command.flags:
        if flag.kind is bool:
            yield _Option(flag.option, flag.help, False, ())
            yield _Option(flag.negative, f"not {flag.option}", False, ())
        else:
            yield _Option(flag.option, flag.help, True, _choices(flag))
    yield _Option("--config", _CONFIG_HELP, True, ())
    yield _Option("--help", "show the common flags", False, ())
    yield _Option("--help-all", "show every flag", False, ())


def _choices(flag: Flag) -> tuple[str, ...]:
    return get_args(flag.kind) if get_origin(flag.kind) is Literal else ()


def _positional_choices(commands: Sequence[CommandFlags]) -> dict[str, tuple[str, ...]]:
    """Returns by command what its first argument may be, where that is one of a few words."""
    return {
        command.name: _choices(flag)
        for command in commands
        for flag in command.flags
        if flag.positional and _choices(flag)
    }


def _zsh_text(text: str) -> str:
    for special in ("\\", "[", "]", ":"):
        text = text.replace(special, f"\\{special}")
    return text


def _zsh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def run(config: CompletionConfig) -> int:
    """Prints the script. Returns 0."""
    print(SCRIPTS[config.shell](commands()), end="")
    return 0


def commands() -> list[CommandFlags]:
    """Returns all commands of this installation: pagewire-client has no plug-ins."""
    found = []
    absent = cli.PLUGINS - plugins("pagewire.commands").keys()
    for name, what in cli.COMMANDS.items():
        if name in absent:
            continue
        if name in cli.WITHOUT_ARGUMENTS:
            found.append(CommandFlags(name, what, ()))
            continue
        found.append(CommandFlags(name, what, tuple(flags_of(cli.find_command(name).config).values())))
    return found


COMMANDS = {"completion": (CompletionConfig, run)}
