"""Fixtures of the frontend's tests."""

from pathlib import Path

import pytest

from frontend.model.info import ModelInfo, load_model
from pagewire.config import FrontendConfig
from tests.frontend import fakes


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small files of a checkpoint with a byte-level tokenizer and a chat template."""
    return fakes.write_checkpoint(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> ModelInfo:
    """The same, loaded."""
    return load_model(FrontendConfig(model=str(checkpoint), served_model_name=("fake",)))
