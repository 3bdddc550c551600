"""Fixtures of the tests of images."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vision_models import make_vision_model

FolderOf = Callable[[str], Path]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """Returns a checkpoint of a family, made once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = make_vision_model(tmp_path_factory.mktemp(family), family)
        return made[family]

    return folder


def read(folder: Path, name: str) -> dict[str, Any]:
    """Returns the content of a JSON file."""
    values: dict[str, Any] = json.loads((folder / name).read_text())
    return values
