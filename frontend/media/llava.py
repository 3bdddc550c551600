"""LLaVA: an image is one item of a fixed size, the center of the resized image."""

from PIL import Image

from frontend.media.family import Cut, ImageFiles, NotServed, Vectors, require_resize, require_side

_BICUBIC = 3
_CLIP = "clip_vision_model"
"""The encoder that puts a vector for the whole image before those of its patches."""


class Llava:
    """CLIPImageProcessor, SiglipImageProcessor and LlavaImageProcessor of transformers."""

    def __init__(self, files: ImageFiles) -> None:
        """Raises NotServed."""
        images, is_siglip = files.images, files.images.text("image_processor_type") == "SiglipImageProcessor"
        require_resize(images)
        small = {"height": 224, "width": 224}
        self.placeholder = files.processor.text("image_token", "<image>")
        self._resample = Image.Resampling(images.resampling(_BICUBIC))
        size = images.size("size", small if is_siglip else {"shortest_edge": 224}, square=is_siglip)
        self._short = size.get("shortest_edge", 0)
        if "longest_edge" in size:
            raise NotServed(f"{images.name}: size states longest_edge")
        self._crop = None
        if images.flag("do_center_crop", not is_siglip):
            crop = images.size("crop_size", small)
            self._crop = crop.get("width", 0), crop.get("height", 0)
        self._size = size.get("width", 0), size.get("height", 0)
        is_square = images.text("image_processor_type") == "LlavaImageProcessor"
        self._background = _background(files) if is_square and images.flag("do_pad", False) else None
        self._count = self._num_vectors(files)

    def _num_vectors(self, files: ImageFiles) -> int:
        """Returns the vectors of an image, whose size is checked against the encoder's."""
        made = self._crop or self._size
        side = require_side(files, *made)
        patch = files.processor if files.processor.has("patch_size") else files.vision
        states = files.processor if files.processor.has("vision_feature_select_strategy") else files.config
        additional = int(files.vision.text("model_type") == _CLIP)
        if files.processor.has("num_additional_image_tokens"):
            stated = files.processor.values.get("num_additional_image_tokens", 0)
            additional = int(stated in (1, True))
        if states.text("vision_feature_select_strategy", "default") == "default":
            additional -= 1
        count = (side // patch.whole("patch_size")) ** 2 + additional
        if count < 1:
            raise NotServed("the encoder makes no vectors of an image")
        return count

    def cut(self, image: Image.Image) -> Cut:
        """Resizes and cuts an RGB image."""
        if self._background is not None:
            image = _square(image, self._background)
        width, height = image.size
        size = self._size
        if self._short:
            longer = int(self._short * max(width, height) / min(width, height))
            size = (self._short, longer) if width <= height else (longer, self._short)
        image = image.resize(size, self._resample)
        if self._crop is not None:
            left, top = (size[0] - self._crop[0]) // 2, (size[1] - self._crop[1]) // 2
            image = image.crop((left, top, left + self._crop[0], top + self._crop[1]))
        return Cut([image], [Vectors(0, self._count)])


def _background(files: ImageFiles) -> tuple[int, int, int]:
    """Returns the color beside an image that is made square: the mean of the images of the training."""
    mean = files.images.values.get("image_mean", [0.48145466, 0.4578275, 0.40821073])
    match mean:
        case [int() | float() as red, int() | float() as green, int() | float() as blue]:
            return int(red * 255), int(green * 255), int(blue * 255)
    raise NotServed(f"{files.images.name}: image_mean must be three numbers")


def _square(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    width, height = image.size
    side = max(width, height)
    square = Image.new("RGB", (side, side), background)
    square.paste(image, ((side - width) // 2, (side - height) // 2))
    return square
