"""`pagewire completion`."""

import importlib

from pagewire import cli, rooms
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
    rooms.make_importable()
    found = []
    for name, what in cli.COMMANDS.items():
        if name in cli.WITHOUT_ARGUMENTS:
            found.append(Command(name, what, ()))
            continue
        config = importlib.import_module(f"pagewire.cli.{name}").CONFIG
        found.append(Command(name, what, tuple(flags_of(config).values())))
    return found
