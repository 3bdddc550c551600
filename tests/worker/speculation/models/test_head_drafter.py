"""Drafts of a head: what EAGLE-3's formulas say, whatever became of earlier drafts; outputs stay."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.eagle_heads import drafts_of, write_agreeing_pair, write_head
from tests.worker.fakes import DrivenSequence, Driver, resolved_params
from worker.speculation.models.head import HeadDrafter

Checkpoints = Callable[..., Path]
Drafted = list[tuple[list[int], list[int]]]

pytestmark = pytest.mark.cpu_kernels
SIZES = {"dtype": "float32", "block_size": 16, "num_blocks": 200, "max_num_seqs": 16, "record": False}
PROMPTS = [list(range(3, 43)), [9, 8, 7], [50], list(range(100, 121))]


@pytest.fixture(scope="module")
def target(checkpoint: Checkpoints) -> Path:
    return checkpoint("llama", head_dim=32, hidden_size=64, max_position_embeddings=256)


def driver(target: Path, head: Path, room: int = 3, **changes: object) -> Driver:
    speculation = f"heads:{head},tokens={room}"
    return Driver(target, room=room, speculation=speculation, **(SIZES | changes))  # type: ignore[arg-type]


def outputs_of(driving: Driver, n: int = 1) -> list[DrivenSequence]:
    """What the prompts become."""
    made = [each for prompt in PROMPTS for each in driving.add(prompt, 12, resolved_params(), n=n)]
    driving.run()
    return made


def noted(monkeypatch: pytest.MonkeyPatch) -> Drafted:
    """Rows, as they are drafted for, and their drafts, from now on."""
    drafted: Drafted = []
    original = HeadDrafter.draft

    def draft(self: HeadDrafter, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        table = self._target_rows
        before = [table.token_ids[row, : table.num_tokens[row]].tolist() for row in rows]
        drafts = original(self, rows, most)
        drafted.extend(zip(before, drafts, strict=True))
        return drafts

    monkeypatch.setattr(HeadDrafter, "draft", draft)
    return drafted


@pytest.mark.parametrize("tokens", [None, range(5, 300, 3)])
@pytest.mark.parametrize(("block_size", "n", "budget"), [(16, 2, 4096), (4, 1, 32)])
def test_it_drafts_as_the_formulas_say(
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block_size: int,
    n: int,
    budget: int,
    tokens: Sequence[int] | None,
) -> None:
    """Sequences share the blocks of a prompt, then copy them; or prompts are computed in chunks, and torch
    attends."""
    head = write_head(tmp_path, target, tokens)
    drafted = noted(monkeypatch)
    driving = driver(target, head, block_size=block_size)
    driving.budget = budget
    outputs = outputs_of(driving, n)
    plain = Driver(target, **(SIZES | {"block_size": block_size}))  # type: ignore[arg-type]
    assert [each.output for each in outputs] == [each.output for each in outputs_of(plain, n)]
    model = transformers.AutoModelForCausalLM.from_pretrained(target)
    tensors = load_file(head / "model.safetensors")
    embedding = model.get_input_embeddings().weight.detach()
    some = [each for each in drafted if each[1]]
    assert len(some) > 10
    for token_ids, drafts in some[::3]:
        with torch.inference_mode():
            states = model(torch.tensor([token_ids[:-1]]), output_hidden_states=True).hidden_states
            behind = [states[1][0], states[2][0], unnormed(model, token_ids[:-1])]
            expected = drafts_of(tensors, embedding, torch.cat(behind, dim=-1), token_ids, len(drafts))
        assert drafts == expected


def unnormed(model: torch.nn.Module, token_ids: list[int]) -> torch.Tensor:
    """The hidden states behind the last layer: transformers returns them behind the norm."""
    kept: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0][0]))
    model(torch.tensor([token_ids]))
    hook.remove()
    return kept[0]


def test_a_head_that_knows_is_right(target: Path, tmp_path: Path) -> None:
    """Drafts are accepted to the end, greedy and drawn with the same number."""
    driving = driver(*write_agreeing_pair(tmp_path, target, noise=0))
    drawn = resolved_params(temperature=0.2, seed=5)
    for params in (resolved_params(), drawn):
        driving.add(PROMPTS[0], 30, params, n=2)
    driving.run()
    assert driving.num_accepted > 0.9 * driving.num_drafted > 60
