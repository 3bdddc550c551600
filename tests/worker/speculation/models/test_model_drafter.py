"""Drafts of a second model: what it computes, and that a model which agrees is always right."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.ops.attention.ragged import Integers
from tests.worker.fakes import Driver, resolved_params
from worker.speculation.models.model_drafter import ModelDrafter
from worker.step.plan_reader import Step

Checkpoints = Callable[..., Path]

pytestmark = pytest.mark.cpu_kernels
SIZES = {"dtype": "bfloat16", "block_size": 16, "num_blocks": 400, "max_num_seqs": 16, "record": False}
PROMPT = list(range(3, 43))
DRAWN = {"temperature": 0.9, "seed": 11}


def driver(folder: Path, draft: Path, room: int = 3, **changes: object) -> Driver:
    speculation = f"draft:{draft},tokens={room}"
    return Driver(folder, room=room, speculation=speculation, **(SIZES | changes))  # type: ignore[arg-type]


@pytest.fixture
def folder(checkpoint: Checkpoints) -> Path:
    return checkpoint("llama", head_dim=32, max_position_embeddings=256)


def test_the_model_itself_drafts_what_it_samples(folder: Path) -> None:
    """With the same number for a token, a model that agrees is right, also where it draws. Rows of all kinds
    are drafted for together."""
    driving = driver(folder, folder)
    biased = resolved_params(**DRAWN, top_p=0.9)
    biased.logit_bias[20] = 6.0
    biased.allowed_token_ids.extend(range(10, 30))
    for params in (resolved_params(), resolved_params(**DRAWN), resolved_params(**DRAWN, top_k=5), biased):
        driving.add(PROMPT, 17, params, n=2)
    driving.run()
    assert driving.num_drafted == driving.num_accepted > 80


def test_what_it_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a prompt, without a draft, then two tokens after a draft that was accepted as a whole."""
    driving = driver(folder, folder)
    computed: list[int] = []
    original = ModelDrafter._run

    def count(self: ModelDrafter, step: Step) -> Integers:
        computed.append(int(step.counts[0]) if len(step.rows) == 1 else -1)
        return original(self, step)

    monkeypatch.setattr(ModelDrafter, "_run", count)
    (first,) = driving.add(PROMPT, 10)
    driving.run()
    assert first.done and computed == [41, 1, 1, 1, 2, 1, 1]


def test_a_prompt_that_it_lacks_is_computed_in_parts(folder: Path) -> None:
    """As many tokens as a step may have, and no draft of the row meanwhile."""
    plain = Driver(folder, **SIZES)  # type: ignore[arg-type]
    driving = driver(folder, folder, max_num_batched_tokens=50)
    outputs = []
    for each in (plain, driving):
        each.budget = 50
        outputs.append(each.add(list(range(3, 143)), 20)[0])
        each.run()
    assert outputs[0].output == outputs[1].output
    assert driving.num_drafted == driving.num_accepted > 9
