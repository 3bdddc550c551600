"""Fixtures of the hostile tests: one service that all of them attack, and the fake of a checkpoint."""

from tests.frontend.conftest import checkpoint, model
from tests.hostile.oracle import victim

__all__ = ["checkpoint", "model", "victim"]
