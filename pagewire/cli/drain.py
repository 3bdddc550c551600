"""`pagewire drain`."""

from pagewire.cli.common.connect import connect
from pagewire.cli.common.frontends import check_choice, show
from pagewire.command_config import DrainConfig

CONFIG = DrainConfig


def run(config: DrainConfig) -> int:
    """Starts a drain and prints which frontends drain; 1: one does not. Raises RpcError, UsageError."""
    check_choice(config)
    with connect(config) as client:
        return show(client.drain(config.end_after, frontend=config.frontend, all_frontends=config.all))
