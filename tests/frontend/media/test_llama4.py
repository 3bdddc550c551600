"""Llama 4's sizes are those of transformers, which computes some of them with 32 bits, and its resizing by
Pillow is nearly that of torchvision."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.image_utils import SizeDict

from frontend.media.llama4 import _canvas, _inner
from tests.frontend.media.llama4_judge import processing
from tests.frontend.media.pictures import picture


def drawn(side: int) -> tuple[int, int]:
    """Returns width and height, of which some are nearly whole tiles."""
    if random.random() < 0.5:
        return int(2 ** random.uniform(0, 13)), int(2 ** random.uniform(0, 13))
    width, height = (max(1, side * random.randint(1, 5) + random.randint(-2, 2)) for _ in range(2))
    return width, height


@pytest.mark.parametrize("to_max", [False, True])
@pytest.mark.parametrize(("side", "most"), [(28, 6), (336, 16), (17, 1)])
def test_sizes(side: int, most: int, to_max: bool) -> None:
    random.seed(side)
    judge = processing()
    judge.find_supported_resolutions.cache_clear()
    known = torch.tensor(judge.find_supported_resolutions(most, SizeDict(height=side, width=side)))
    for width, height in (drawn(side) for _ in range(200)):
        canvas = judge.get_best_fit((height, width), known, resize_to_max_canvas=to_max)
        found = _canvas(width, height, side, most, to_max)
        assert found == tuple(canvas.tolist()[::-1]), (width, height)
        limits = canvas
        if not to_max:
            limits = [min(max(own, side), limit) for own, limit in zip((height, width), canvas, strict=True)]
        rows, columns = map(int, judge.get_max_res_without_distortion((height, width), limits))
        expected = max(columns, 1), max(rows, 1)
        assert _inner(width, height, found, None if to_max else side) == expected, (width, height)


@pytest.mark.parametrize("size", [(64, 48), (13, 90), (336, 200)])
def test_resizing_is_nearly_that_of_torchvision(size: tuple[int, int]) -> None:
    """It calls torch for it, of whose results none is off by more than 1 of 255."""
    image = picture(100, 77)
    ours = np.array(image.resize(size, Image.Resampling.BILINEAR)).astype(int)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    theirs = torch.nn.functional.interpolate(pixels, size[::-1], mode="bilinear", antialias=True)
    assert abs(ours - theirs[0].permute(1, 2, 0).numpy()).max() <= 1
