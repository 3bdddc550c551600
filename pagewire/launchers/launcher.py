"""What a launcher is to `pagewire serve` and `pagewire ranks`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from pagewire.config import RanksConfig, ServeConfig
from pagewire.errors import StartupError


class Launcher(Protocol):
    """Starts `pagewire ranks` on other hosts, as a process of its own."""

    def run(self) -> int:
        """Keeps the ranks of all other hosts running until a signal; returns 0 then. Raises StartupError."""
        ...


def launcher_of(config: RanksConfig) -> Launcher:
    """Returns the launcher of --launcher. Raises StartupError."""
    from pagewire.launchers.ray_cluster import RayCluster  # imports Ray, which nothing else does
    from pagewire.launchers.ray_launcher import RayLauncher

    return RayLauncher(config, RayCluster)


@contextmanager
def prepared(config: ServeConfig) -> Iterator[ServeConfig]:
    """Yields the flags of a service with what its launcher adds: an address of this host, unless
    --master-addr names one, and keys, which are removed at the end. Those of --curve-key stay valid. Raises
    StartupError."""
    if config.launcher == "none":
        yield config
        return
    if config.nnodes == 1:
        raise StartupError(
            "cannot launch ranks on other hosts",
            f"--launcher is {config.launcher}, and --nnodes is 1",
            "add --nnodes, the number of hosts with this one; one host starts its ranks without a launcher",
        )
    from pagewire.ipc.curve import make_keys, read_engine_key  # not in a base install, which has no ZeroMQ
    from pagewire.ipc.runtime_folder import runtime_folder
    from pagewire.launchers.ray_probe import find_host

    address = find_host(config.ray_address)
    with runtime_folder() as folder:
        engine_file, _ = make_keys(folder, read_engine_key(config.curve_key) if config.curve_key else None)
        yield replace(config, master_addr=config.master_addr or address, curve_key=str(engine_file))
