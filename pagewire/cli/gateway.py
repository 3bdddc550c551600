"""`pagewire gateway`."""

from pagewire.cli.common.extras import require_gateway
from pagewire.config import GatewayConfig
from pagewire.logs import process_log

CONFIG = GatewayConfig


def run(config: GatewayConfig) -> int:
    """Runs smg until a signal; returns the exit code."""
    process_log.setup(config.process_name or "gateway", config.log_level, config.log_format)
    require_gateway()
    from pagewire.supervisor.gateway import Gateway

    return Gateway(config).run()
