"""What an extra of the distribution installs."""

import importlib.util

from pagewire.errors import StartupError


def require(extra: str, modules: tuple[str, ...], doing: str) -> None:
    """Raises StartupError, naming the extra, when one of its modules is not installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise StartupError(
            f"cannot {doing}", f"{missing[0]} is not installed", f"pip install 'pagewire[{extra}]'"
        )


def require_worker(doing: str, device: str = "auto") -> None:
    """As require(), for everything that computes. A simulated device needs no torch."""
    if device == "simulated":
        require("engine", ("numpy",), doing)
    else:
        require("worker", ("torch", "numpy", "safetensors"), doing)
