"""Folders and contexts for real sockets."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of mode 0700 with a short name: a socket's path has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="pw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    """A ZeroMQ context for one test."""
    with zmq.Context() as made:
        yield made
