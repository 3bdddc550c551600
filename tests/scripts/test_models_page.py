"""docs/models.md is what the registries and the tests say."""

from pagewire.checkpoints.files import ENCODERS
from scripts.models_page import PAGE, page
from tests.checkpoints import FAMILIES
from worker.families.registry import DECODERS


def test_the_page_is_fresh():
    assert PAGE.read_text() == page(), "run python -m scripts.models_page"


def test_every_architecture_has_a_row():
    """And one of what its adapters may change, but for decoders of other families."""
    text = PAGE.read_text()
    beside_images = [name for name, family in DECODERS.items() if family.nested]
    assert all(text.count(f"| `{name}` |") == 2 - (name in beside_images) for name in DECODERS)
    assert len(FAMILIES) + len(beside_images) + len(ENCODERS.keys() & DECODERS.keys()) == len(DECODERS)
