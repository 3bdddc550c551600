"""Pixtral and Mistral 3: an image is one item of any size, in whole patches; its rows end with a token."""

from math import floor

from PIL import Image

from frontend.media.family import Cut, ImageFiles, NotServed, Vectors, require_resize

_BICUBIC = 3


class Pixtral:
    """PixtralImageProcessor of transformers, with the text of its processor."""

    def __init__(self, files: ImageFiles) -> None:
        """Raises NotServed."""
        images, processor = files.images, files.processor
        require_resize(images)
        self.placeholder = processor.text("image_token", "[IMG]")
        self._break = processor.text("image_break_token", "[IMG_BREAK]")
        self._end = processor.text("image_end_token", "[IMG_END]")
        self._resample = Image.Resampling(images.resampling(_BICUBIC))
        merges = processor if processor.has("spatial_merge_size") else files.config
        self._patch = processor.whole("patch_size", 16) * merges.whole("spatial_merge_size", 1)
        size = images.size("size", {"longest_edge": 1024})
        longest = size.get("longest_edge", 0)
        self._most = (longest, longest) if longest else (size.get("width", 0), size.get("height", 0))
        if not all(self._most):
            raise NotServed(f"{images.name}: size must state longest_edge, or height and width")
        most, side = self._patches(max(self._most)) * self._patch, files.side_of_encoder
        if most > side:
            raise NotServed(f"the image processor makes up to {most} pixels a side, the encoder takes {side}")

    def cut(self, image: Image.Image) -> Cut:
        """Resizes an RGB image."""
        width, height = image.size
        ratio = max(height / self._most[1], width / self._most[0])
        if ratio > 1:
            width, height = floor(width / ratio), floor(height / ratio)
        columns, rows = self._patches(width), self._patches(height)
        image = image.resize((columns * self._patch, rows * self._patch), self._resample)
        pieces: list[str | Vectors] = []
        for row in range(rows):
            pieces += Vectors(0, columns), self._end if row == rows - 1 else self._break
        return Cut([image], pieces)

    def _patches(self, side: int) -> int:
        """Returns how many patches have all pixels of a side."""
        return max(side - 1, 0) // self._patch + 1
