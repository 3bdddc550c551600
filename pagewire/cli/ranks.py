"""`pagewire ranks`."""

from pagewire import logs
from pagewire.cli.extras import require, require_launcher
from pagewire.config import RanksConfig
from pagewire.flags import UsageError
from pagewire.host.nodes import check_nodes, resolved


def run(config: RanksConfig) -> int:
    """Runs the ranks of this host, or of all others by a launcher, until a signal; returns 0 then."""
    logs.setup(config.process_name or "ranks", config.log_level, config.log_format)
    require("serve", "start ranks")
    if config.launcher != "none":
        return _launch(config)
    if not 0 < config.node_rank < config.nnodes:
        why = f"--node-rank is {config.node_rank}, and --nnodes is {config.nnodes}"
        todo = "use --node-rank 1 to N - 1 with --nnodes N; host 0 runs pagewire serve"
        raise UsageError("no such host of the group", why, todo)
    config = resolved(config)
    check_nodes(config)
    from pagewire.supervisor.rank_processes import RankProcesses

    return RankProcesses(config).run()


def _launch(config: RanksConfig) -> int:
    if config.node_rank or config.nnodes == 1:
        why = f"--launcher {config.launcher} with --node-rank {config.node_rank} of --nnodes {config.nnodes}"
        todo = "leave out --node-rank: a launcher starts the ranks of all hosts but the first"
        raise UsageError("no such host of the group", why, todo)
    require_launcher(config)
    config = resolved(config)
    check_nodes(config)
    from pagewire.launchers.launcher import launcher_of

    return launcher_of(config).run()


COMMANDS = {"ranks": (RanksConfig, run)}
