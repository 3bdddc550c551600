"""Llama 4: an image is a grid of square tiles, of the grid that it fills with the least change of its size,
and a view of all of it. What it does not fill is black."""

from dataclasses import dataclass
from functools import cache
from math import floor
from struct import pack, unpack

from PIL import Image

from frontend.media.family import Cut, ImageFiles, NotServed, Vectors, require_resize, require_side

_BILINEAR = 2
_MOST_TILES = 64
_PATCH = "<|patch|>"
_BEGIN, _END = "<|image_start|>", "<|image_end|>"
_BESIDE, _BELOW = "<|tile_x_separator|>", "<|tile_y_separator|>"


class Llama4:
    """Llama4ImageProcessor of transformers with Pillow's resizing, and with the text of its processor."""

    placeholder = "<|image|>"

    def __init__(self, files: ImageFiles) -> None:
        """Raises NotServed."""
        images = files.images
        require_resize(images)
        self._resample = Image.Resampling(images.resampling(_BILINEAR))
        size = images.size("size", {"height": 336, "width": 336})
        self._side = require_side(files, size.get("height", 0), size.get("width", 0))
        self._most = images.whole("max_patches", 16)
        if self._most > _MOST_TILES:
            raise NotServed(f"{images.name}: max_patches is above {_MOST_TILES}")
        self._to_max = images.flag("resize_to_max_canvas", False)
        per_side = self._side // files.vision.whole("patch_size", 14)
        self._count = per_side**2 // _merged(files)

    def cut(self, image: Image.Image) -> Cut:
        """Resizes and cuts an RGB image."""
        side = self._side
        canvas = _canvas(*image.size, side, self._most, self._to_max)
        whole = Image.new("RGB", canvas)
        whole.paste(image.resize(_inner(*image.size, canvas, None if self._to_max else side), self._resample))
        columns, rows = canvas[0] // side, canvas[1] // side
        pieces: list[str | Vectors] = [_BEGIN]
        tiles: list[Image.Image] = []
        if rows * columns > 1:
            for row in range(rows):
                for column in range(columns):
                    pieces += (_BESIDE,) if column else ()
                    pieces.append(Vectors(len(tiles), self._count, _PATCH))
                    left, top = column * side, row * side
                    tiles.append(whole.crop((left, top, left + side, top + side)))
                pieces.append(_BELOW)
            whole = image.resize((side, side), self._resample)
        pieces += self.placeholder, Vectors(len(tiles), self._count, _PATCH), _END
        return Cut([*tiles, whole], pieces)


def _merged(files: ImageFiles) -> int:
    """Returns how many patches become one vector. Raises NotServed."""
    name = "pixel_shuffle_ratio"
    ratios = [settings.values.get(name, 0.5) for settings in (files.processor, files.vision)]
    match ratios:
        case [int() | float() as ratio, int() | float() as of_encoder] if 0.01 < ratio == of_encoder <= 1:
            return round(1 / ratio**2)
    raise NotServed(
        f"{name} is {ratios[0]} in {files.processor.name}, and {ratios[1]} in {files.vision.name}"
    )


@cache
def _canvases(side: int, most: int) -> list[tuple[int, int]]:
    """Returns width and height of all grids of at most so many tiles."""
    sides = range(1, most + 1)
    return [(columns * side, rows * side) for columns in sides for rows in sides if columns * rows <= most]


def _canvas(width: int, height: int, side: int, most: int, to_max: bool) -> tuple[int, int]:
    """Returns width and height of the grid in which an image is enlarged the least, or the most if to_max; if
    it fits into none, made smaller the least. Of several, the one with the fewest tiles."""
    canvases = _canvases(side, most)
    scales = [min(_single(right / width), _single(down / height)) for right, down in canvases]
    larger = [scale for scale in scales if scale >= 1]
    chosen = (max if to_max or not larger else min)(larger or scales)
    fitting = (canvas for canvas, scale in zip(canvases, scales, strict=True) if scale == chosen)
    return min(fitting, key=lambda canvas: canvas[0] * canvas[1])


def _inner(width: int, height: int, canvas: tuple[int, int], side: int | None) -> tuple[int, int]:
    """Returns width and height of the image on its canvas, with its ratio. side: a side of less becomes as
    long at most, one of more stays; None: all of the canvas is filled."""
    right, down = (_Limit.of(*each, side) for each in ((width, canvas[0]), (height, canvas[1])))
    across, along = right.scale(width), down.scale(height)
    compared = _single if right.is_single or down.is_single else float
    if compared(across) < compared(along):
        return right.pixels, max(1, min(floor(right.rounded(height * across)), down.pixels))
    return max(1, min(floor(down.rounded(width * along)), right.pixels)), down.pixels


@dataclass(frozen=True, slots=True)
class _Limit:
    """The most pixels of a side. is_single: transformers has them in a tensor, and computes with 32 bits."""

    pixels: int
    is_single: bool

    @classmethod
    def of(cls, own: int, canvas: int, side: int | None) -> "_Limit":
        """own: pixels of the image's side. side: see _inner()."""
        if side is not None and max(own, side) <= canvas:
            return cls(max(own, side), False)
        return cls(canvas, True)

    def rounded(self, value: float) -> float:
        """Returns a result as it is computed."""
        return _single(value) if self.is_single else value

    def scale(self, own: int) -> float:
        """Returns by how much a side grows at most."""
        return self.rounded(self.pixels / own)


def _single(value: float) -> float:
    """Returns the nearest number of 32 bits."""
    found: float = unpack("f", pack("f", value))[0]
    return found
