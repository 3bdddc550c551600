"""docs/models.md is what the registries and the tests say."""

from pagewire.checkpoints.files import ENCODERS
from scripts.models_page import PAGE, page
from tests.checkpoints import FAMILIES
from worker.families.registry import DECODERS


def test_the_page_is_fresh():
    assert PAGE.read_text() == page(), "run python -m scripts.models_page"


def test_every_architecture_has_a_row():
    text = PAGE.read_text()
    assert all(f"| `{name}` |" in text for name in DECODERS)
    beside_images = [family for family in DECODERS.values() if family.nested]  # decoders of other families
    assert len(FAMILIES) + len(beside_images) + len(ENCODERS.keys() & set(DECODERS)) == len(DECODERS)
