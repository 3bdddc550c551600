"""`pagewire gateway`."""

from pagewire import logs
from pagewire.cli.common.extras import require_gateway
from pagewire.config import GatewayConfig

CONFIG = GatewayConfig


def run(config: GatewayConfig) -> int:
    """Runs smg until a signal; returns the exit code."""
    logs.setup(config.process_name or "gateway", config.log_level, config.log_format)
    require_gateway()
    from pagewire.supervisor.gateway import Gateway

    return Gateway(config).run()
