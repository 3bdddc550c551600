"""One file per command. Each has CONFIG, a configuration class, and run(config) -> exit code.

A command imports what it needs when it is run, so that a base install can talk to a service and
run a frontend without torch.
"""

import difflib
import importlib
from collections.abc import Sequence

from pagewire import __version__, flags
from pagewire.flags import UsageError

COMMANDS = {
    "serve": "start everything on this host",
    "generate": "stream the continuation of a prompt",
    "chat": "have a conversation",
    "health": "ask a service whether it takes requests",
    "drain": "tell a frontend to take nothing new",
    "resume": "tell it to serve again",
    "demo": "start everything on the demo model, stream a few answers, stop",
    "frontend": "start one frontend",
    "engine": "start one engine core, with its worker",
    "worker": "start one worker",
    "token": "make a token for --auth-file",
    "replay": "tell a scheduler again what a recording says",
    "keys": "make keys for tcp:// between our processes",
    "version": "print the version",
}
INTERNAL = frozenset({"reader"})
"""Commands that our own processes start."""


def run(arguments: Sequence[str]) -> int:
    """Runs `pagewire ARGUMENTS`; returns the exit code. Raises UsageError and StartupError."""
    command = arguments[0] if arguments else "--help"
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
    module = importlib.import_module(f"pagewire.cli.{command}")
    code: int = module.run(flags.parse(module.CONFIG, arguments[1:], command=command))
    return code


def _overview() -> str:
    lines = ["usage: pagewire COMMAND [...]", "", "Large language models served over gRPC.", ""]
    lines += [f"  {name:<10} {what}" for name, what in COMMANDS.items()]
    lines += ["", "pagewire COMMAND --help shows the flags of a command."]
    return "\n".join(lines)
