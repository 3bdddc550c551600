"""Images on the CUDA path, in Triton's interpreter."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.v1.generation_pb2 import LogprobOptions
from tests.logprob_columns import Scored
from tests.vision_models import make_vision_model
from tests.worker.cuda.host_devices import SMALL, interpret, load_on_the_host
from tests.worker.fakes import Driver, resolved_params
from tests.worker.vision.images import Pixels, make_image, prompt_of

TEXT, MORE = [5, 100, 317, 7], [9, 0]


def run(driver: Driver, *prompts: list[list[int] | Pixels]) -> list[list[Scored]]:
    made = [prompt_of(driver, parts, 320) for parts in prompts]
    wants = LogprobOptions(top_n=2)
    sequences = [driver.add(ids, 2, resolved_params(), wants=wants, media=items)[0] for ids, items in made]
    driver.run()
    return [sequence.scores for sequence in sequences]


@pytest.mark.parametrize("family", ["smolvlm", "pixtral", "qwen3_vl", "gemma3"])
def test_bits_do_not_depend_on_the_step(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Alone, in chunks beside other prompts, and where other steps run in graphs; vectors and scores are
    nearly those of a CPU."""
    tower: dict[str, Any] = {"num_hidden_layers": 1}
    if family == "qwen3_vl":
        tower = {"depth": 1, "deepstack_visual_indexes": [0]}
    layers = ["sliding_attention", "full_attention"] if family == "gemma3" else None
    text = {"num_hidden_layers": 2, "layer_types": layers} if layers else {"num_hidden_layers": 1}
    folder = make_vision_model(tmp_path, family, vision=tower, text=text)
    image = make_image(family)
    prompt, others = [TEXT, image, MORE], ([TEXT], [make_image(family, 1), TEXT])
    on_a_cpu = Driver(folder, record=False, dtype="float32")
    with torch.inference_mode():
        expected = on_a_cpu.runner.backend.model.vision(torch.from_numpy(image))  # type: ignore[attr-defined]
    (scores,) = run(on_a_cpu, prompt)
    interpret(monkeypatch)

    def load(budget: int = 64) -> Driver:
        return Driver(folder, budget, record=False, loader=load_on_the_host, dtype="float32", **SMALL)

    driver = load()
    with torch.inference_mode():
        found = driver.runner.backend.model.vision(torch.from_numpy(image))  # type: ignore[attr-defined]
    assert (found - expected).abs().max() < 1e-4 * (expected.max() - expected.min())
    (alone,) = run(driver, prompt)
    for one, other in zip(alone, scores, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
    assert run(driver, *others, prompt)[-1] == alone
    driver = load(budget=7)
    driver.runner.backend.capture(7)  # type: ignore[attr-defined]
    assert run(driver, *others, prompt)[-1] == alone
