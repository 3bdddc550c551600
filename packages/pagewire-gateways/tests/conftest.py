"""Fixtures of the gateways' tests."""

from tests.frontend.conftest import checkpoint, model

__all__ = ["checkpoint", "model"]
