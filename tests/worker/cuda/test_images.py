"""Images on the CUDA path, in Triton's interpreter."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.errors import StartupError
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


@pytest.mark.parametrize("family", ["smolvlm", "pixtral", "qwen3_vl"])
def test_bits_do_not_depend_on_the_step(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Alone, in chunks beside other prompts, and where other steps run in graphs; vectors are nearly those of
    a CPU."""
    tower: dict[str, Any] = {"num_hidden_layers": 1}
    if family == "qwen3_vl":
        tower = {"depth": 1, "deepstack_visual_indexes": [0]}
    folder = make_vision_model(tmp_path, family, vision=tower, text={"num_hidden_layers": 1})
    image = make_image(family)
    on_a_cpu = Driver(folder, dtype="float32").runner.backend.model.vision  # type: ignore[attr-defined]
    with torch.inference_mode():
        expected = on_a_cpu(torch.from_numpy(image))
    interpret(monkeypatch)

    def load(budget: int = 64) -> Driver:
        return Driver(folder, budget, record=False, loader=load_on_the_host, dtype="float32", **SMALL)

    driver = load()
    with torch.inference_mode():
        found = driver.runner.backend.model.vision(torch.from_numpy(image))  # type: ignore[attr-defined]
    assert (found - expected).abs().max() < 1e-4 * (expected.max() - expected.min())
    prompt, others = [TEXT, image, MORE], ([TEXT], [make_image(family, 1), TEXT])
    (alone,) = run(driver, prompt)
    assert run(driver, *others, prompt)[-1] == alone
    driver = load(budget=7)
    driver.runner.backend.capture(7)  # type: ignore[attr-defined]
    assert run(driver, *others, prompt)[-1] == alone


def test_images_that_are_seen_whole_are_refused(tmp_path: Path):
    folder = make_vision_model(tmp_path, "gemma3")
    with pytest.raises(StartupError, match="computed on CPUs alone"):
        Driver(folder, record=False, loader=load_on_the_host, dtype="float32", **SMALL)
