"""Gemma 4: an image is one item of about as many pixels as any other, in its own proportions."""

from math import floor, sqrt

from PIL import Image

from frontend.media.family import Cut, ImageFiles, NotServed, Settings, Vectors, require_resize

_BICUBIC = 3
_BUDGETS = (70, 140, 280, 560, 1120)
"""Vectors of an image at most, of which a checkpoint has one."""


class Gemma4:
    """Gemma4ImageProcessor of transformers, with the text of its processor."""

    def __init__(self, files: ImageFiles) -> None:
        """Raises NotServed."""
        images, vision, tokens = files.images, files.vision, files.tokens
        require_resize(images)
        self.placeholder = tokens.text("image_token", "<|image|>")
        self._begin, self._end = tokens.text("boi_token", "<|image>"), tokens.text("eoi_token", "<image|>")
        self._resample = Image.Resampling(images.resampling(_BICUBIC))
        sizes = {"patch_size": 16, "pooling_kernel_size": 3}
        made, taken = ({name: each.whole(name, sizes[name]) for name in sizes} for each in (images, vision))
        if made != taken:
            raise NotServed(f"the image processor has {made}, and the encoder takes {taken}")
        self._most = images.whole("max_soft_tokens", 280)
        if self._most not in _BUDGETS:
            raise NotServed(f"{images.name}: max_soft_tokens is {self._most}, which is none of {_BUDGETS}")
        if self._most > self._most_rows(vision, made["pooling_kernel_size"]):
            raise NotServed("images may have more rows or columns than the encoder has positions of")
        self._side = made["patch_size"] * made["pooling_kernel_size"]

    @staticmethod
    def _most_rows(vision: Settings, patches: int) -> int:
        """Returns of how many rows and columns of vectors the encoder has positions. patches: of a side of
        what becomes a vector."""
        return vision.whole("position_embedding_size", 10240) // patches

    def cut(self, image: Image.Image) -> Cut:
        """Resizes an RGB image."""
        rows, columns = self._squares(image.height, image.width)
        size = columns * self._side, rows * self._side
        return Cut([image.resize(size, self._resample)], [self._begin, Vectors(0, rows * columns), self._end])

    def _squares(self, height: int, width: int) -> tuple[int, int]:
        """Returns rows and columns of vectors: as many as fit into the budget."""
        factor = sqrt(self._most * self._side**2 / (height * width))
        rows, columns = floor(factor * height / self._side), floor(factor * width / self._side)
        if not rows:
            return 1, min(width // height, self._most)
        if not columns:
            return min(height // width, self._most), 1
        return rows, columns


class Gemma4Unified(Gemma4):
    """Gemma4UnifiedImageProcessor of transformers, with Pillow's resizing."""

    @staticmethod
    def _most_rows(vision: Settings, patches: int) -> int:
        return vision.whole("mm_posemb_size", 1120)
