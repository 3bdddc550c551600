"""What the files of a checkpoint say of how images are prepared: `preprocessor_config.json`, or
`image_processor` in `processor_config.json`, which goes before it, as with transformers. Needs no torch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pagewire.checkpoints.files import read_object
from pagewire.errors import StartupError
from worker.config.hf_config import MOST, WHAT, Fields
from worker.config.vision import PixelsConfig


def read_most_pixels(fields: Fields, side: int) -> int:
    """Returns the pixels of an image as it is prepared, at most. fields: of an image processor. side: of the
    square that becomes a vector. Raises StartupError."""
    size, name = fields.object("size"), "longest_edge"
    if fields.has("max_pixels"):
        size, name = fields, "max_pixels"
    most = size.integer(name, 28 * 28 * 1280, most=MOST)
    if most < side * side:
        raise size.wrong(name, f"a vector is made of {side} x {side} pixels")
    return most


def read_soft_tokens(fields: Fields, side: int) -> int:
    """As read_most_pixels(), for a processor of Gemma 4."""
    return fields.integer("max_soft_tokens", 280, most=MOST // side**2) * side**2


def has_pixel_fields(folder: Path) -> bool:
    """Returns whether files of a checkpoint say how images are prepared. Raises StartupError."""
    return _find_pixel_fields(folder)[1] is not None


def _find_pixel_fields(folder: Path) -> tuple[str, dict[str, Any] | None]:
    name = "processor_config.json"
    values = (read_object(folder, name, WHAT) or {}).get("image_processor")
    if not isinstance(values, dict) or not values:
        name = "preprocessor_config.json"
        values = read_object(folder, name, WHAT)
    return name, values if isinstance(values, dict) else None


def pixel_fields(folder: Path) -> Fields:
    """Returns what says how images are prepared: `preprocessor_config.json`, or a part of
    `processor_config.json`. Raises StartupError."""
    name, values = _find_pixel_fields(folder)
    if values is None:
        raise StartupError(WHAT, f"{folder} holds no preprocessor_config.json, which says what pixels become")
    return Fields(values, name)


def read_centered_pixels(fields: Fields) -> PixelsConfig:
    """As read_pixels(), for models that compute 2 * (pixel - 0.5) themselves: those of Gemma 4."""
    found = read_pixels(fields, normalizes=False)
    if (found.mean, found.std) != ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)):
        raise fields.wrong("do_normalize", "image_mean other than 0 and image_std other than 1 are not known")
    return PixelsConfig(scale=found.scale, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def read_pixels(fields: Fields, *, normalizes: bool = True) -> PixelsConfig:
    """Reads what processors do to pixels. fields: of an image processor. normalizes: where they do not say
    whether they do. Raises StartupError."""
    scale = fields.number("rescale_factor", 1 / 255) if fields.boolean("do_rescale", True) else 1.0
    if not fields.boolean("do_normalize", normalizes):
        return PixelsConfig(scale=scale, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    mean, std = (_read_channels(fields, each) for each in ("image_mean", "image_std"))
    if min(std) <= 0:
        raise fields.wrong("image_std", "must be greater than 0")
    return PixelsConfig(scale=scale, mean=mean, std=std)


def read_rounded_pixels(fields: Fields) -> PixelsConfig:
    """As read_pixels(), for a processor that computes in bfloat16: that of Llama 4."""
    for name in ("do_rescale", "do_normalize"):
        if not fields.boolean(name, True):
            raise fields.wrong(name, "must be true")
    return replace(read_pixels(fields), rounds=True)


def _read_channels(fields: Fields, name: str) -> tuple[float, float, float]:
    value = fields.value(name)
    if isinstance(value, list) and len(value) == 3 and all(type(each) in (int, float) for each in value):
        return float(value[0]), float(value[1]), float(value[2])
    raise fields.wrong(name, "must be three numbers, of red, green and blue")
