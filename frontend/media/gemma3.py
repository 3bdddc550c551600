"""Gemma 3: an image is one item of a fixed size, between line breaks."""

from PIL import Image

from frontend.media.family import Cut, ImageFiles, NotServed, Vectors, require_resize, require_side

_BILINEAR = 2


class Gemma3:
    """Gemma3ImageProcessor of transformers without pan and scan, with the text of its processor."""

    def __init__(self, files: ImageFiles) -> None:
        """Raises NotServed."""
        images, tokens = files.images, files.tokens
        require_resize(images)
        if images.flag("do_pan_and_scan", False):
            raise NotServed(f"{images.name}: do_pan_and_scan is true")
        self.placeholder = tokens.text("boi_token", "<start_of_image>")
        self._token = tokens.text("image_token", "<image_soft_token>")
        self._end = tokens.text("eoi_token", "<end_of_image>")
        self._resample = Image.Resampling(images.resampling(_BILINEAR))
        size = images.size("size", {"height": 224, "width": 224})
        self._size = size.get("width", 0), size.get("height", 0)
        require_side(files, *self._size)
        self._count = files.processor.whole("image_seq_length", 256)
        made = files.config.whole("mm_tokens_per_image", 256)
        if self._count != made:
            raise NotServed(
                f"the processor has {self._count} tokens for an image, and the encoder makes {made} vectors"
            )

    def cut(self, image: Image.Image) -> Cut:
        """Resizes an RGB image."""
        vectors = Vectors(0, self._count, self._token)
        pieces: list[str | Vectors] = ["\n\n", self.placeholder, vectors, self._end, "\n\n"]
        return Cut([image.resize(self._size, self._resample)], pieces)
