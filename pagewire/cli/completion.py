"""`pagewire completion`."""

from pagewire import cli
from pagewire.cli.common.completion_scripts import SCRIPTS, Command
from pagewire.command_config import CompletionConfig
from pagewire.flags import flags_of

CONFIG = CompletionConfig


def run(config: CompletionConfig) -> int:
    """Prints the script. Returns 0."""
    print(SCRIPTS[config.shell](commands()), end="")
    return 0


def commands() -> list[Command]:
    """Returns the commands with their flags."""
    found = []
    for name, what in cli.COMMANDS.items():
        if name in cli.WITHOUT_ARGUMENTS:
            found.append(Command(name, what, ()))
            continue
        config = cli.command_module(name).CONFIG
        found.append(Command(name, what, tuple(flags_of(config).values())))
    return found
