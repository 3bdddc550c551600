"""Commands by subject, and plug-ins.

Each module has COMMANDS: by name, the configuration class of a command, and the function that runs it and
returns the exit code.

A command imports what it needs when it runs, so that a base install can call a service and run a frontend
without torch.
"""

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pagewire import __version__, flags, rooms
from pagewire.flags import UsageError
from pagewire.plugins import find_plugin

COMMANDS = {
    "serve": "start everything on this host",
    "generate": "stream the continuation of a prompt",
    "chat": "have a conversation",
    "health": "check whether a service accepts requests",
    "top": "show the load of a service, live",
    "bench": "measure a service under load; compare two measurements",
    "requests": "list requests in flight",
    "explain": "say where a request's time went, and what it waits for",
    "adapters": "list, load and unload LoRA adapters",
    "drain": "make frontends refuse new requests",
    "resume": "end a drain",
    "demo": "start everything on the demo model, stream a few answers, stop",
    "frontend": "start one frontend",
    "engine": "start one engine core, with its worker",
    "worker": "start one worker",
    "ranks": "start the ranks of this host, of a worker over several hosts",
    "gateway": "start smg in front of frontends",
    "kv-events": "publish what the prefix cache holds, for indexers",
    "token": "make a token for --auth-file",
    "replay": "repeat a recording and compare the plans",
    "keys": "make keys for tcp:// between processes",
    "docs": "print where the pages of the documentation are",
    "completion": "print a script that completes commands and flags in a shell",
    "version": "print the version",
}
WITHOUT_ARGUMENTS = ("--help", "-h", "help", "--version", "version")
"""Commands that are run here, and have no flags."""
PLUGINS = frozenset({"bench", "gateway", "kv-events", "replay"})
"""Commands whose modules are in distributions of their own."""
INTERNAL = frozenset({"reader"})
"""Commands that only processes of a service start."""
_MODULES = {
    **dict.fromkeys(("frontend", "engine", "worker", "reader"), "processes"),
    **dict.fromkeys(("token", "keys"), "credentials"),
    "resume": "drain",
    "explain": "requests",
}
"""Modules of commands that do not have their name."""


class Command(NamedTuple):
    """What is run for a command."""

    config: type[Any]
    run: Callable[[Any], int]


def run(arguments: Sequence[str]) -> int:
    """Runs `pagewire ARGUMENTS`; returns the exit code. Raises UsageError and StartupError."""
    command = arguments[0] if arguments else "--help"
    if command in WITHOUT_ARGUMENTS and len(arguments) > 1:
        raise UsageError(f"pagewire {command} takes no arguments", todo="pagewire COMMAND --help")
    if command in ("--help", "-h", "help"):
        print(_overview())
        return 0
    if command in ("--version", "version"):
        print(__version__)
        return 0
    if command not in COMMANDS and command not in INTERNAL:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UsageError(f"unknown command {command!r}{hint}", todo="see: pagewire --help")
    found = find_command(command)
    return found.run(flags.parse(found.config, arguments[1:], command=command))


def find_command(command: str) -> Command:
    """Imports the module of a command. Raises StartupError for a plug-in that is not installed."""
    rooms.make_importable()
    if command in PLUGINS:
        plugin = find_plugin("pagewire.commands", command).load()
        return Command(plugin.CONFIG, plugin.run)
    module = importlib.import_module(f"pagewire.cli.{_MODULES.get(command, command)}")
    return Command(*module.COMMANDS[command])


def _overview() -> str:
    lines = ["usage: pagewire COMMAND [--help | ...]: large language models served over gRPC"]
    lines += [f"  {name:<11}{what}" for name, what in COMMANDS.items()]
    return "\n".join(lines)
