"""`pagewire drain`."""

from pagewire.cli.common.connect import connect
from pagewire.command_config import DrainConfig

CONFIG = DrainConfig


def run(config: DrainConfig) -> int:
    """Starts a drain and prints the number of requests in flight. Raises RpcError."""
    with connect(config) as client:
        print(f"draining: {client.drain(config.end_after)} requests in flight")
    return 0
