"""What a grammar forces is drafted, and rows with grammars are what they are without drafts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from frontend.grammar.notation import json_grammar
from pagewire.internal.v1 import worker_pb2
from tests.worker.fakes import DrivenSequence, Driver, resolved_params

pytestmark = pytest.mark.cpu_kernels
SIZES = {"dtype": "bfloat16", "block_size": 16, "num_blocks": 400, "max_num_seqs": 16, "record": False}
GRAMMAR = json_grammar(
    '{"type":"object","properties":{"name":{"type":"string","maxLength":4},"number":{"enum":[1, 22, 333]}},'
    '"required":["name","number"],"additionalProperties":false}'
)


def outputs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, speculation: str, room: int, **changes: object
) -> tuple[list[list[int]], Driver]:
    """What six rows become, two of which share a prompt. speculation: "" for none."""
    driver = Driver(folder, room=room, speculation=speculation, **(SIZES | changes))  # type: ignore[arg-type]
    original = driver._plan

    def planned() -> tuple[worker_pb2.StepPlan, list[DrivenSequence]]:
        plan, sampled = original()
        for new in plan.new_rows:
            new.grammar = GRAMMAR
        return plan, sampled

    monkeypatch.setattr(driver, "_plan", planned)
    sequences = driver.add([3, 4, 5], 30, resolved_params())
    sequences += driver.add([9] * 20, 30, resolved_params(temperature=0.9, seed=11), n=3)
    sequences += driver.add([7], 30, resolved_params(temperature=1, seed=5, repetition_penalty=1.2), n=2)
    driver.run()
    return [sequence.output for sequence in sequences], driver


@pytest.mark.parametrize("method", ["grammar", "lookup", "draft"])
def test_the_same_with_drafts(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A draft model knows nothing of the grammar: what it drafts is refused at the first token that must not
    follow."""
    folder = checkpoint("llama", head_dim=32)
    expected, plain = outputs(folder, monkeypatch, "", 0)
    speculation = f"draft:{folder},tokens=6" if method == "draft" else f"{method}:tokens=6"
    made, driver = outputs(folder, monkeypatch, speculation, 6)
    assert made == expected
    assert driver.num_accepted > 20 and driver.steps < plain.steps
