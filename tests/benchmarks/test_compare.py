"""Services of another checkout."""

import os
from pathlib import Path

from benchmarks.service.compare import importing
from pagewire import rooms
from pagewire.host import spawn


def first_import_folder() -> str:
    """Of a service that starts now."""
    return spawn.child_environment()["PYTHONPATH"].split(os.pathsep)[0]


def test_services_import_the_other_checkout_only_meanwhile(tmp_path: Path) -> None:
    with importing(tmp_path):
        assert first_import_folder() == str(tmp_path)
    assert first_import_folder() == str(rooms.folder())


def test_without_a_checkout_services_import_this_one() -> None:
    with importing(None):
        assert first_import_folder() == str(rooms.folder())
