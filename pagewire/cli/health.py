"""`pagewire health`: for scripts, containers and people."""

import sys

from pagewire.cli.connect import connect
from pagewire.client.errors import RpcError
from pagewire.config import HealthConfig

CONFIG = HealthConfig


def run(config: HealthConfig) -> int:
    """Returns 0 when the service takes requests, 1 when it does not within --wait seconds."""
    with connect(config) as client:
        try:
            client.wait_ready(config.wait)
        except RpcError as error:
            print(f"NOT_SERVING: {config.address}: {error.message}", file=sys.stderr)
            return 1
    print(f"SERVING: {config.address}")
    return 0
