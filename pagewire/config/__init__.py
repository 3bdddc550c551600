"""Configuration: one frozen dataclass per process, from whose fields the command line is made.

Configurations are immutable. Facts found at start-up (block count, actual context length) are reported in the
`Ready` and `Welcome` messages. Precedence: flag, environment variable `PAGEWIRE_NAME`, configuration file,
default.
"""

from pagewire.config.base import (
    DEMO_MODEL,
    MAX_COUNT,
    NO_PORT,
    CommonConfig,
    LogLevel,
    ModelConfig,
    WatchedConfig,
    flag,
)
from pagewire.config.engine import EngineConfig
from pagewire.config.frontend import FrontendConfig
from pagewire.config.nodes import LauncherConfig, NodesConfig, RanksConfig
from pagewire.config.serve import GatewayConfig, KeysConfig, ServeConfig
from pagewire.config.worker import WorkerConfig

__all__ = [
    "CommonConfig",
    "DEMO_MODEL",
    "EngineConfig",
    "FrontendConfig",
    "GatewayConfig",
    "KeysConfig",
    "LauncherConfig",
    "LogLevel",
    "MAX_COUNT",
    "ModelConfig",
    "NO_PORT",
    "NodesConfig",
    "RanksConfig",
    "ServeConfig",
    "WatchedConfig",
    "WorkerConfig",
    "flag",
]
