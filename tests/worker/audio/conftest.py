"""Checkpoints of models that hear sounds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.audio_models import make_audio_model


@pytest.fixture(scope="session")
def audio_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make_audio_model(family, **changes), each made once."""
    made: dict[str, Path] = {}

    def make(family: str, **changes: Any) -> Path:
        key = f"{family} {sorted(changes.items())}"
        if key not in made:
            made[key] = make_audio_model(tmp_path_factory.mktemp(family), family, **changes)
        return made[key]

    return make
