"""Llama4ImageProcessor of transformers where torchvision is not installed, with resizing by Pillow.

What torchvision would do beside that is here: it pads, and normalizes.
"""

import importlib.util
import sys
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.image_transforms import convert_to_rgb
from transformers.image_utils import SizeDict

from tests.worker.vision.images import pixels_of_llama4


@cache
def processing() -> Any:
    """Returns the module of transformers."""
    functional = ModuleType("torchvision.transforms.v2.functional")
    functional.pad = _pad  # type: ignore[attr-defined]
    v2 = ModuleType("torchvision.transforms.v2")
    v2.functional = functional  # type: ignore[attr-defined]
    stubs = {outer: ModuleType(outer) for outer in ("torchvision", "torchvision.transforms")}
    stubs |= {each.__name__: each for each in (v2, functional)}
    file = Path(transformers.__file__).parent / "models/llama4/image_processing_llama4.py"
    name = "transformers.models.llama4.image_processing_llama4"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, stubs | {name: module}):
        spec.loader.exec_module(module)
    return module


def _pad(images: torch.Tensor, padding: list[int], fill: list[int]) -> torch.Tensor:
    left, top, right, bottom = padding
    assert left == top == 0 and not any(fill)
    return torch.nn.functional.pad(images, (left, right, top, bottom))


class Llama4Judge:
    """What transformers makes of images. values: preprocessor_config.json."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __call__(self, image: Image.Image, return_tensors: str) -> dict[str, Any]:
        values, made = self._values, processing().Llama4ImageProcessor
        pixels = torch.from_numpy(convert_to_rgb(image, return_numpy=True)).permute(2, 0, 1)
        fields = ("max_patches", "resize_to_max_canvas", "resample", "rescale_factor")
        own = SimpleNamespace(resize=_resize, normalize=lambda scaled, mean, std: scaled.sub(mean).div(std))
        own.rescale_and_normalize = partial(made.rescale_and_normalize, own)
        mean, std = (
            torch.tensor(values[name], dtype=torch.bfloat16)[:, None, None]
            for name in ("image_mean", "image_std")
        )
        processing().find_supported_resolutions.cache_clear()
        found = made._preprocess(
            own,
            [pixels],
            do_resize=True,
            size=SizeDict(**values["size"]),
            do_rescale=True,
            do_normalize=True,
            image_mean=mean,
            image_std=std,
            disable_grouping=None,
            return_tensors="pt",
            **{name: values[name] for name in fields},
        )
        return {
            "pixel_values": found["pixel_values"].float().numpy(),
            "aspect_ratios": found["aspect_ratios"].numpy(),
        }

    def rescale(self, pixels: Any, factor: float) -> Any:
        """Does nothing yet: see normalize()."""
        return pixels

    def normalize(self, pixels: Any, mean: object, std: object) -> Any:
        """[3, height, width] uint8 -> float32, as the processor's bfloat16."""
        return pixels_of_llama4(torch.from_numpy(pixels.copy()), self._values).float().numpy()


def _resize(images: torch.Tensor, size: Any, resample: int) -> torch.Tensor:
    (image,) = images
    made = Image.fromarray(image.permute(1, 2, 0).numpy())
    made = made.resize((size.width, size.height), Image.Resampling(resample))
    return torch.from_numpy(np.array(made)).permute(2, 0, 1)[None]
