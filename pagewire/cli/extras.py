"""Checks that the modules of an optional dependency are installed."""

import importlib.util

from pagewire.errors import StartupError, install_hint


def require(extra: str, modules: tuple[str, ...], doing: str) -> None:
    """Raises StartupError, naming the extra, if one of its modules is not installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise StartupError(f"cannot {doing}", f"{missing[0]} is not installed", install_hint(extra))


def require_worker(doing: str, device: str = "auto") -> None:
    """Requires the modules of a worker; a simulated device needs no torch."""
    if device == "simulated":
        require("engine", ("numpy",), doing)
    else:
        require("worker", ("torch", "numpy", "safetensors"), doing)
