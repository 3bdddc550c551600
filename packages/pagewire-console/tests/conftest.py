"""Fixtures of the console's tests."""

from console_fakes import run_console, shown
from tests.frontend.conftest import checkpoint, model

__all__ = ["checkpoint", "model", "run_console", "shown"]
