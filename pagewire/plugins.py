"""Finds the distributions that extend pagewire (those of packages/, and others), by entry points.

pagewire.commands   the module of the command with this name: CONFIG, a configuration class, and run(config)
pagewire.http       (FrontendParts, Inspector) -> frontend.http.port.Extension, or None: it is off
pagewire.model_implementations
                    (folder, whether its code may run) -> worker.startup.implementation.ForeignConfig, by the
                    value of --model-impl
pagewire.platforms  WorkerConfig -> worker.platforms.base.Platform, by the value of --device
pagewire.servicers  (FrontendParts, Aborts) -> frontend.grpc_services.OptionalServicer, by the flag's name
"""

from typing import TYPE_CHECKING

from pagewire.errors import StartupError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def plugins(group: str) -> "dict[str, EntryPoint]":
    """Returns the installed entry points of a group by name."""
    from importlib.metadata import entry_points  # takes 15 ms; most commands have no use for it

    return {each.name: each for each in entry_points(group=group)}


def find_plugin(group: str, name: str) -> "EntryPoint":
    """Returns one entry point. Raises StartupError if no installed distribution has it."""
    found = plugins(group).get(name)
    if found is None:
        raise StartupError(
            f"cannot find {name!r}",
            f"no installed distribution has an entry point of this name in {group}",
            "install pagewire again (in a source tree: pip install -e .)",
        )
    return found
