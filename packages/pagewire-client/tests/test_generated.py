"""The blocking clients are generated from the asyncio ones, and are not stale."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from pagewire_client import aio, operations, operations_aio, sync
from pagewire_client.transport import io_aio, io_sync, multiplex, multiplex_aio, stream, stream_aio
from scripts.clients import FILES

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "clients.py"
CLIENT = Path(aio.__file__).parent


def test_the_generated_files_are_up_to_date():
    run = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("path", FILES.values())
def test_nothing_of_asyncio_is_left(path: str):
    text = (CLIENT / path).read_text(encoding="utf-8")
    assert not [word for word in ("async ", "await", "Async", "io_aio", "grpc.aio") if word in text]


@pytest.mark.parametrize(
    "asynchronous, blocking",
    [
        (aio.AsyncClient, sync.Client),
        (operations_aio.AsyncPager, operations.Pager),
        (stream_aio.AsyncStream, stream.Stream),
        (multiplex_aio.AsyncMultiplex, multiplex.Multiplex),
    ],
)
def test_both_have_the_same_methods_and_parameters(asynchronous: type, blocking: type):
    def public(cls: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(cls, inspect.isfunction)
        return {
            name.replace("aclose", "close"): list(inspect.signature(method).parameters)
            for name, method in methods
            if not name.startswith("_")
        }

    assert public(asynchronous) == public(blocking)


def test_both_io_modules_have_the_same_names():
    def names(module: object) -> set[str]:
        return {
            name.removeprefix("Async")
            for name in vars(module)
            if not name.startswith("__") and not inspect.ismodule(getattr(module, name))
        }

    assert names(io_aio) ^ names(io_sync) <= {"deque", "nullcontext"}
