"""Fixtures of the worker's tests."""

from tests.worker.conftest import checkpoint, no_release_of_memory, one_thread

__all__ = ["checkpoint", "no_release_of_memory", "one_thread"]
