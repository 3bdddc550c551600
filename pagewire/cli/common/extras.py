"""Checks that the modules of an optional dependency are installed."""

import importlib.util

from pagewire.config import FrontendConfig
from pagewire.errors import StartupError, install_hint


def require(extra: str, modules: tuple[str, ...], doing: str) -> None:
    """Raises StartupError, naming the extra, if one of its modules is not installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise StartupError(f"cannot {doing}", f"{missing[0]} is not installed", install_hint(extra))


def require_doors(config: FrontendConfig) -> None:
    """Requires the modules of the ports that a frontend opens beside gRPC's. Raises StartupError."""
    if config.vllm_engine:
        require("vllm", ("smg_grpc_proto",), "serve vllm.grpc.engine.VllmEngine (--vllm-engine)")
    if config.openai_port is not None:
        require("http", ("starlette", "uvicorn", "h11"), "serve the OpenAI API (--openai-port)")


def require_worker(doing: str, device: str = "auto") -> None:
    """Requires the modules of a worker; a simulated device needs no torch."""
    if device == "simulated":
        require("engine", ("numpy",), doing)
    else:
        require("worker", ("torch", "numpy", "safetensors"), doing)
