"""Checks that the modules of an optional dependency are installed."""

import importlib.util

from pagewire import rooms
from pagewire.config import FrontendConfig, LauncherConfig
from pagewire.errors import StartupError, install_hint
from pagewire.plugins import find_plugin

_FRONTEND = (
    *("grpc_reflection", "grpc_status", "h11", "jinja2", "llguidance", "prometheus_client"),
    *("starlette", "tokenizers", "uvicorn", "uvloop", "yaml", "zmq"),
)
_MODULES = {
    "frontend": _FRONTEND,
    "engine": (*_FRONTEND, "numpy"),
    "serve": ("torch", *_FRONTEND, "numpy", "safetensors"),
    "ray": ("ray",),
    "vllm": ("smg_grpc_proto", "msgpack"),
    "gateway": ("smg", "smg_grpc_proto", "msgpack"),
}
"""Modules of extras that a process cannot run without."""


def require(extra: str, doing: str, *, at_least: str = "") -> None:
    """Raises StartupError, naming the extra, if one of its modules is not installed, or if only
    pagewire-client is. at_least: another extra, whose modules may do."""
    if not (rooms.folder() / "engine_core" / "core.py").exists():
        raise StartupError(f"cannot {doing}", "pagewire-client has no server", install_hint(extra))
    missing = [module for module in _MODULES[at_least or extra] if importlib.util.find_spec(module) is None]
    if missing:
        raise StartupError(f"cannot {doing}", f"{missing[0]} is not installed", install_hint(extra))


def require_doors(config: FrontendConfig) -> None:
    """Requires the modules of the ports that a frontend opens beside gRPC's. Raises StartupError."""
    if config.vllm_engine:
        require("vllm", "serve vllm.grpc.engine.VllmEngine (--vllm-engine)")
    if config.console and config.openai_port is None:
        raise StartupError(
            "cannot serve the console", "there is no port for it", "add --openai-port (0: a free one)"
        )
    if config.console:
        find_plugin("pagewire.http", "console")


def require_worker(doing: str, device: str = "auto") -> None:
    """Requires the modules of a frontend and an engine with its worker; a simulated device needs no torch."""
    require("engine" if device == "simulated" else "serve", doing)


def require_launcher(config: LauncherConfig) -> None:
    """Requires the modules of --launcher. Raises StartupError."""
    if config.launcher != "none":
        require(config.launcher, f"launch ranks on other hosts (--launcher {config.launcher})")
