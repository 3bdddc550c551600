"""Pairs of frames of a video: the logits of transformers, and the same bits however work is cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.vision_models import FAMILIES
from tests.worker.fakes import DrivenSequence, Driver
from tests.worker.vision.images import Judge, Pixels, item_of, make_image
from tests.worker.vision.test_parity import MORE, TEXT, assert_same

SEE_VIDEOS = [family for family, made in FAMILIES.items() if "videos" in made]
IMAGE, VIDEO = 1, 2
"""Of mm_token_type_ids."""


def video_of(pairs: int) -> Pixels:
    """Returns [2 * pairs, 16, 24, 3]."""
    return np.random.default_rng(pairs).integers(0, 256, (2 * pairs, 16, 24, 3), dtype=np.uint8)


class Prompt:
    """Text, two videos and an image between them."""

    def __init__(self, judge: Judge) -> None:
        self.image, self.videos = make_image(judge.family), [video_of(2), video_of(1)]
        self.ids, self.types, self.items = list[int](), list[int](), list[Any]()
        self._tokens = {IMAGE: judge.placeholder, VIDEO: judge.model.config.video_token_id}
        pairs = [(VIDEO, each) for video in self.videos for each in video.reshape(-1, 2, *video.shape[1:])]
        for number, (kind, taken) in enumerate([*pairs[:2], (IMAGE, self.image), pairs[2]]):
            self._add(TEXT[number:])
            count = taken.shape[-3] // 8 * (taken.shape[-2] // 8)
            self.items.append(item_of(taken, range(len(self.ids), len(self.ids) + count)))
            self._add([self._tokens[kind]] * count, kind)
        self._add(MORE)

    def _add(self, ids: list[int], kind: int = 0) -> None:
        self.ids += ids
        self.types += [kind] * len(ids)

    def run(self, driver: Driver, *others: list[int]) -> DrivenSequence:
        """Computes it beside others."""
        for ids in others:
            driver.add(ids, 4)
        [sequence] = driver.add(self.ids, 4, media=self.items)
        driver.run()
        return sequence


@pytest.mark.parametrize("family", SEE_VIDEOS)
def test_as_transformers(family: str, vision_model: Callable[..., Path]):
    folder = vision_model(family)
    judge = Judge(folder, family)
    prompt = Prompt(judge)
    with torch.inference_mode():
        expected = judge.model(
            input_ids=torch.tensor([prompt.ids]),
            mm_token_type_ids=torch.tensor([prompt.types], dtype=torch.int),
            **judge.inputs([prompt.image]),
            **judge.videos(prompt.videos),
        ).logits[0, -1]
    sequence = prompt.run(Driver(folder, dtype="float32", budget=11))
    assert (sequence.logits[0] - expected).abs().max() < 1e-4 * (expected.max() - expected.min())


@pytest.mark.cpu_kernels
def test_bits_do_not_depend_on_the_step(vision_model: Callable[..., Path]):
    """Alone, in chunks that cut frames, beside others, encoded before, and preempted."""
    folder = vision_model("qwen3_vl")
    prompt, settings = Prompt(Judge(folder, "qwen3_vl")), {"dtype": "bfloat16", "block_size": 16}
    alone = prompt.run(Driver(folder, **settings))
    driver = Driver(folder, budget=9, **settings)
    assert_same(prompt.run(driver, TEXT, MORE), alone)
    assert_same(prompt.run(driver), alone)
    driver = Driver(folder, budget=5, **settings)
    [sequence] = driver.add(prompt.ids, 4, media=prompt.items)
    driver.step()
    driver.step()
    driver.preempt(sequence)
    driver.run()
    assert_same(sequence, alone)


def test_two_equal_frames_are_an_image(vision_model: Callable[..., Path]):
    model: Any = Driver(vision_model("qwen3_vl"), dtype="float32").runner.backend.model  # type: ignore[attr-defined]
    vision = model.vision
    image = torch.from_numpy(make_image("qwen3_vl"))
    with torch.inference_mode():
        assert torch.equal(vision(torch.stack((image, image))), vision(image))
        assert len(vision(torch.stack((image, image, image)))) == 0
    other: Any = Driver(vision_model("llava"), dtype="float32").runner.backend.model  # type: ignore[attr-defined]
    with torch.inference_mode():
        assert len(other.vision(torch.from_numpy(np.stack((make_image("llava"),) * 2)))) == 0
