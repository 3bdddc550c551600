"""Qwen2-VL and what follows it: an image is one item of about its own size, in whole squares of patches."""

from math import ceil, floor, sqrt

from PIL import Image

from frontend.media.family import Cut, ImageFiles, NotServed, Settings, Vectors, require_resize

_BICUBIC = 3
_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
"""The least and the most pixels, which have these names."""
MOST = 1 << 31
"""Pixels that a checkpoint may state."""


class QwenVL:
    """Qwen2VLImageProcessor of transformers, with the text of its processor."""

    def __init__(self, files: ImageFiles) -> None:
        """Raises NotServed."""
        images = files.images
        require_resize(images)
        self.placeholder = files.tokens.text("image_token", "<|image_pad|>")
        self.resample = Image.Resampling(images.resampling(_BICUBIC))
        sizes = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
        made = {name: images.whole(name, size) for name, size in sizes.items()}
        defaults = {"patch_size": made["patch_size"], "spatial_merge_size": 2, "temporal_patch_size": 2}
        encoder = [files.vision.whole(name, size) for name, size in defaults.items()]
        if list(made.values()) != encoder:
            raise NotServed(f"the image processor has {made}, and the encoder takes other patches")
        self.side = made["patch_size"] * made["merge_size"]
        size = images.part("size") if images.has("size") else Settings(images.name, _SIZE)
        self._least, self._most = (
            images.whole(own, below=MOST) if images.has(own) else size.whole(edge, below=MOST)
            for own, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
        )

    def cut(self, image: Image.Image) -> Cut:
        """Resizes an RGB image."""
        width, height = image.size
        rows, columns = self._squares(height, width)
        image = image.resize((columns * self.side, rows * self.side), self.resample)
        return Cut([image], [Vectors(0, rows * columns)])

    def _squares(self, height: int, width: int) -> tuple[int, int]:
        """Returns rows and columns of vectors: those nearest to the image's size, unless their pixels are too
        many or too few."""
        side = self.side
        rows, columns = round(height / side), round(width / side)
        if rows * columns * side * side > self._most:
            ratio = sqrt((height * width) / self._most)
            return max(1, floor(height / ratio / side)), max(1, floor(width / ratio / side))
        if rows * columns * side * side < self._least:
            ratio = sqrt(self._least / (height * width))
            return ceil(height * ratio / side), ceil(width * ratio / side)
        return rows, columns
