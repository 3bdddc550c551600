"""docs/models.md is what the registries and the tests say."""

from scripts.models_page import PAGE, page
from tests.checkpoints import FAMILIES
from worker.families.registry import READERS


def test_the_page_is_fresh():
    assert PAGE.read_text() == page(), "run python -m scripts.models_page"


def test_every_architecture_has_a_row():
    text = PAGE.read_text()
    assert all(f"| `{name}` |" in text for name in READERS)
    assert len(FAMILIES) == len(READERS)
