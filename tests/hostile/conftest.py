"""One service for all that tries to harm it."""

from tests.hostile.oracle import victim

__all__ = ["victim"]
