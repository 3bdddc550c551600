"""`pagewire resume`."""

from pagewire.cli.common.connect import connect
from pagewire.cli.common.frontends import check_choice, show
from pagewire.command_config import ResumeConfig

CONFIG = ResumeConfig


def run(config: ResumeConfig) -> int:
    """Ends a drain and prints which frontends serve; 1: one does not. Raises RpcError, UsageError."""
    check_choice(config)
    with connect(config) as client:
        return show(client.resume(frontend=config.frontend, all_frontends=config.all))
