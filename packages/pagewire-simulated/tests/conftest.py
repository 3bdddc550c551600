"""Checkpoints without weights, and runners on them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagewire.internal.v1 import worker_pb2
from tests.worker.conftest import checkpoint

__all__ = ["checkpoint"]
from simulated_fakes import SMALL, InProcess, make_initialize


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """folder(**changes): a checkpoint without weights, of a small Llama."""

    def make_folder(**changes: Any) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(SMALL | changes))
        return tmp_path

    return make_folder


@pytest.fixture
def in_process(folder: Callable[..., Path]) -> Callable[..., InProcess]:
    """in_process(num_blocks=..., budget=..., rows=...)."""
    return lambda **limits: InProcess(folder(), **limits)


@pytest.fixture
def initialize(folder: Callable[..., Path]) -> Callable[..., worker_pb2.Initialize]:
    """initialize(**changes of Initialize), for a small Llama."""
    return lambda **changes: make_initialize(folder(), **changes)
