"""Idefics3 and SmolVLM: an image is a grid of square tiles, and a view of all of it of the same size."""

from math import ceil

from PIL import Image

from frontend.media.family import Cut, ImageFiles, NotServed, Vectors, require_resize, require_side

_LANCZOS = 1
_LONGEST = 4096
"""Pixels of the longer side, at most."""
_IMAGE, _AROUND, _GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"


class Idefics3:
    """Idefics3ImageProcessor and SmolVLMImageProcessor of transformers, with the text of their processors."""

    placeholder = _IMAGE

    def __init__(self, files: ImageFiles) -> None:
        """Raises NotServed."""
        images = files.images
        require_resize(images)
        self._resample = Image.Resampling(images.resampling(_LANCZOS))
        self._longest = images.size("size", {"longest_edge": 4 * 364}).get("longest_edge", 0)
        self._side = images.size("max_image_size", {"longest_edge": 364}).get("longest_edge", 0)
        self._splits = images.flag("do_image_splitting", True)
        self._count = files.processor.whole("image_seq_len", 169)
        if not self._longest or not self._side:
            raise NotServed(f"{images.name}: size and max_image_size must state longest_edge")
        require_side(files, self._side)

    def cut(self, image: Image.Image) -> Cut:
        """Resizes and cuts an RGB image."""
        side = self._side
        image = image.resize(_rescaled(*image.size, self._longest), self._resample)
        if not self._splits:
            return self._whole(image.resize((side, side), self._resample))
        image = image.resize(self._tiled(*image.size), self._resample)
        columns, rows = image.size[0] // side, image.size[1] // side
        if rows == columns == 1:
            return self._whole(image)
        tiles: list[Image.Image] = []
        pieces: list[str | Vectors] = []
        for row in range(rows):
            for column in range(columns):
                pieces += _AROUND, f"<row_{row + 1}_col_{column + 1}>", Vectors(len(tiles), self._count)
                left, top = column * side, row * side
                tiles.append(image.crop((left, top, left + side, top + side)))
            pieces.append("\n\n" if row == rows - 1 else "\n")
        pieces += _AROUND, _GLOBAL, Vectors(len(tiles), self._count), _AROUND
        return Cut([*tiles, image.resize((side, side), self._resample)], pieces)

    def _whole(self, image: Image.Image) -> Cut:
        return Cut([image], [_AROUND, _GLOBAL, Vectors(0, self._count), _AROUND])

    def _tiled(self, width: int, height: int) -> tuple[int, int]:
        """Returns width and height, both whole tiles."""
        ratio, side = width / height, self._side
        if width >= height:
            width = ceil(width / side) * side
            height = ceil(int(width / ratio) / side) * side
        else:
            height = ceil(height / side) * side
            width = ceil(int(height * ratio) / side) * side
        return width, height


def _rescaled(width: int, height: int, longest: int) -> tuple[int, int]:
    """Returns width and height with the longer side as given, the other one even."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height = max(height + height % 2, 1)
    else:
        width, height = int(longest * ratio), longest
        width = max(width + width % 2, 1)
    return _bounded(width, height)


def _bounded(width: int, height: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height and width > _LONGEST:
        width, height = _LONGEST, int(_LONGEST / ratio)
    elif height > width and height > _LONGEST:
        width, height = int(_LONGEST * ratio), _LONGEST
    return max(width, 1), max(height, 1)
