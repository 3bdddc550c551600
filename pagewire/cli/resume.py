"""`pagewire resume`."""

from pagewire.cli.common.connect import connect
from pagewire.command_config import ResumeConfig

CONFIG = ResumeConfig


def run(config: ResumeConfig) -> int:
    """Ends a drain. Raises RpcError."""
    with connect(config) as client:
        client.resume()
    print("serving")
    return 0
