"""`pagewire ranks`."""

from pagewire import logs
from pagewire.cli.extras import require
from pagewire.config import RanksConfig
from pagewire.flags import UsageError
from pagewire.host.nodes import check_nodes


def run(config: RanksConfig) -> int:
    """Runs the ranks of this host until a signal; returns 0 then."""
    require("serve", "start ranks")
    logs.setup("ranks", config.log_level, config.log_format)
    if not 0 < config.node_rank < config.nnodes:
        why = f"--node-rank is {config.node_rank}, and --nnodes is {config.nnodes}"
        todo = "use --node-rank 1 to N - 1 with --nnodes N; host 0 runs pagewire serve"
        raise UsageError("no such host of the group", why, todo)
    check_nodes(config)
    from pagewire.supervisor.rank_processes import RankProcesses

    return RankProcesses(config).run()


COMMANDS = {"ranks": (RanksConfig, run)}
