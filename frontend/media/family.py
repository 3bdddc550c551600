"""What a family of models makes of an image, and how the fields of a checkpoint that say so are read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from PIL import Image

_LARGEST = 1 << 16
"""Of every size and count in a checkpoint's files."""


_ENCODERS = {
    "gemma3": "siglip_vision_model",
    "internvl": "internvl_vision",
    "llama4": "llama4_vision_model",
    "llava": "clip_vision_model",
    "mistral3": "pixtral",
}
"""By model_type of config.json: that of an encoder which does not say it."""
_SIDES = {
    "clip_vision_model": 224,
    "idefics3_vision": 224,
    "internvl_vision": 448,
    "llama4_vision_model": 448,
    "pixtral": 1024,
    "siglip_vision_model": 224,
    "smolvlm_vision": 224,
}
"""By model_type of vision_config: image_size where it is not said."""


class NotServed(ValueError):
    """Why images are not served with a checkpoint."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Positions of a prompt that get vectors of one item.

    item:  its index among those of the image.
    token: stands for each; empty: the placeholder.
    """

    item: int
    count: int
    token: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """What stands for one image.

    items:  what the encoder takes, each at once: the image or tiles of it, RGB; of a video some frames of one
            size.
    pieces: what a prompt has in place of the image's placeholder: texts, and positions of vectors. Line
            breaks at their ends and those of the text beside them are tokenized together.
    around: tokens around the placeholder that these stand for, too.
    """

    items: Sequence["Image.Image | Sequence[Image.Image]"]
    pieces: Sequence[str | Vectors]
    around: tuple[str, str] | None = None


class ImageFamily(Protocol):
    """The image processor of a checkpoint."""

    def __init__(self, files: "ImageFiles") -> None:
        """Raises NotServed."""

    @property
    def placeholder(self) -> str:
        """The token that a prompt has once for each image."""

    def cut(self, image: "Image.Image") -> Cut:
        """Resizes and cuts an RGB image. Equal sizes have equal pieces."""


@runtime_checkable
class VideoFamily(ImageFamily, Protocol):
    """One that has a processor of videos, too."""

    no_videos: str
    """Why there are none; empty: there are."""
    video_placeholder: str
    """The token that a prompt has once for each video."""

    def cut_video(self, frames: "Iterable[Image.Image]", seconds: Sequence[float]) -> Cut:
        """Resizes the RGB frames of a video, two or more. seconds: when each is seen. Raises
        frontend.media.decode.ImageProblem."""


class Settings:
    """The fields of one JSON object of a checkpoint, which is not trusted, read by type."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        """name: of the file or the part of it, for errors."""
        self.name, self.values = name, values

    def part(self, field: str) -> "Settings":
        """Returns an object within this one; empty if it is not there."""
        value = self.values.get(field)
        return Settings(f"{self.name}: {field}", value if isinstance(value, dict) else {})

    def has(self, field: str) -> bool:
        """Returns whether a field has a value."""
        return self.values.get(field) is not None

    def flag(self, field: str, default: bool) -> bool:
        """Returns a boolean."""
        value = self.values.get(field)
        return value if isinstance(value, bool) else default

    def text(self, field: str, default: str = "") -> str:
        """Returns a string."""
        value = self.values.get(field)
        return value if isinstance(value, str) and value else default

    def whole(self, field: str, default: int | None = None, below: int = _LARGEST) -> int:
        """Returns a positive integer, or that of a pair of equal ones. Raises NotServed."""
        value = self.values[field] if self.has(field) else default
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < below:
            return value
        raise NotServed(f"{self.name}: {field} must be a positive integer, not {str(value)[:80]}")

    def size(self, field: str, default: Mapping[str, int], *, square: bool = True) -> dict[str, int]:
        """Returns the sides that a size states. A number is both sides, or, if not square, the shorter one.
        Raises NotServed."""
        value = self.values.get(field)
        if isinstance(value, int):
            value = {"height": value, "width": value} if square else {"shortest_edge": value}
        sides = Settings(f"{self.name}: {field}", value if isinstance(value, dict) else default)
        return {name: sides.whole(name) for name in sides.values if sides.has(name)}

    def resampling(self, default: int) -> int:
        """Returns the filter of resizing, in Pillow's numbers. Raises NotServed."""
        value = self.values["resample"] if self.has("resample") else default
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 5:
            return value
        raise NotServed(f"{self.name}: resample is no filter of Pillow")


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """What a checkpoint says of images.

    config:    config.json.
    processor: processor_config.json.
    images:    of the image processor.
    videos:    of the processor of videos; empty: there is none.
    tokens:    names of special tokens of the tokenizer -> their texts.
    """

    config: Settings
    processor: Settings
    images: Settings
    videos: Settings
    tokens: Settings

    @property
    def vision(self) -> Settings:
        """The part of config.json about the encoder."""
        return self.config.part("vision_config")

    @property
    def side_of_encoder(self) -> int:
        """Pixels on each side of an image, or of the largest one. Raises NotServed."""
        kind = self.vision.text("model_type", _ENCODERS.get(self.config.text("model_type"), ""))
        return self.vision.whole("image_size", _SIDES.get(kind))


def require_resize(images: Settings) -> None:
    """Raises NotServed for an image processor that leaves images as large as they are."""
    if not images.flag("do_resize", True):
        raise NotServed(f"{images.name}: do_resize is false")


def require_side(files: ImageFiles, *sides: int) -> int:
    """Returns the pixels on a side of what the encoder takes. Raises NotServed unless these are as many."""
    side = files.side_of_encoder
    if any(each != side for each in sides):
        made = " x ".join(map(str, sides))
        raise NotServed(f"the image processor makes {made} pixels, and the encoder takes {side} on each side")
    return side
