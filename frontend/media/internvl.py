"""InternVL: an image is a grid of square tiles, of the grid that fits it best, and a view of all of it."""

from functools import cache

from PIL import Image

from frontend.media.family import Cut, ImageFiles, NotServed, Vectors, require_resize, require_side

_BICUBIC = 3
_MOST_TILES = 64


class InternVL:
    """GotOcr2ImageProcessor of transformers, as InternVLProcessor calls it, with its text."""

    def __init__(self, files: ImageFiles) -> None:
        """Raises NotServed."""
        images, tokens = files.images, files.tokens
        require_resize(images)
        self.placeholder = tokens.text("context_image_token", "<IMG_CONTEXT>")
        self._begin = tokens.text("start_image_token", "<img>")
        self._end = tokens.text("end_image_token", "</img>")
        self._resample = Image.Resampling(images.resampling(_BICUBIC))
        size = images.size("size", {"height": 384, "width": 384})
        self._side = size.get("height", 0)
        if not self._side or size.get("width") != self._side:
            raise NotServed(f"{images.name}: size must state a height and an equal width")
        require_side(files, self._side)
        self._least, self._most = images.whole("min_patches", 1), images.whole("max_patches", 12)
        if self._most > _MOST_TILES:
            raise NotServed(f"{images.name}: max_patches is above {_MOST_TILES}")
        self._count = files.processor.whole("image_seq_length", 256)

    def cut(self, image: Image.Image) -> Cut:
        """Resizes and cuts an RGB image."""
        side, columns, rows = self._side, 1, 1
        if self._most > 1:
            columns, rows = _grid(*image.size, side, self._least, self._most)
        resized = image.resize((columns * side, rows * side), self._resample)
        tiles = [
            resized.crop((column * side, row * side, (column + 1) * side, (row + 1) * side))
            for row in range(rows)
            for column in range(columns)
        ]
        if len(tiles) > 1:
            tiles.append(image.resize((side, side), self._resample))
        vectors = (Vectors(item, self._count) for item in range(len(tiles)))
        return Cut(tiles, [self._begin, *vectors, self._end])


@cache
def _grids(least: int, most: int) -> list[tuple[int, int]]:
    """Returns columns and rows of all grids of so many tiles, those of fewer tiles first."""
    sides = range(1, most + 1)
    grids = [(columns, rows) for columns in sides for rows in sides if least <= columns * rows <= most]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def _grid(width: int, height: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Returns columns and rows of the grid whose ratio is the closest to the image's; of equally close ones,
    the largest that has less than twice the image's pixels."""
    ratio, nearest, best = width / height, float("inf"), (1, 1)
    for columns, rows in _grids(least, most):
        distance = abs(ratio - columns / rows)
        is_fuller = distance == nearest and width * height > 0.5 * side * side * columns * rows
        if distance < nearest or is_fuller:
            nearest, best = distance, (columns, rows)
    return best
