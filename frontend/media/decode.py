"""Decodes the file of an image into red, green and blue, as transformers' image processors do.

Files come from clients: only the four formats below are tried, and the size that a header states is judged
before anything is decoded.
"""

import warnings
from io import BytesIO

from PIL import Image

from pagewire.limits import MAX_MEDIA_ASPECT, MAX_MEDIA_PIXELS

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "RGBX", "CMYK"})
"""Pillow's modes that have eight bits per channel at most, of files of these formats. PNGs of 16 bits per
channel with colors are RGB and RGBA here, of which Pillow takes the upper eight."""
TOO_LARGE = "takes too much memory to decode"
_ORIENTATION = 0x0112
"""Of EXIF: how the camera was held."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Image.MAX_IMAGE_PIXELS = None  # judged here, by a limit of requests
warnings.filterwarnings("ignore", module="PIL")  # of damaged metadata, which no client would read


class ImageProblem(ValueError):
    """What is wrong with a file, as a client is told: "is ..." or "has ..."."""


def open_image(data: bytes) -> Image.Image:
    """Reads the header of a file, whose pixels are not decoded yet. Raises ImageProblem."""
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except MemoryError as error:
        raise ImageProblem(TOO_LARGE) from error
    except Exception as error:  # whatever a parser of hostile bytes raises
        raise ImageProblem(f"is not a file that can be read as {', '.join(FORMATS)}") from error
    width, height = image.size
    if not width or not height:
        raise ImageProblem(f"has {width} x {height} pixels")
    if width * height > MAX_MEDIA_PIXELS:
        raise ImageProblem(f"has {width} x {height} pixels, more than {MAX_MEDIA_PIXELS}")
    if max(width, height) > MAX_MEDIA_ASPECT * min(width, height):
        raise ImageProblem(
            f"has {width} x {height} pixels: a side is over {MAX_MEDIA_ASPECT} times the other"
        )
    if image.mode not in MODES:
        raise ImageProblem(f"has pixels of the kind {image.mode}, which is not supported")
    return image


def decode(image: Image.Image) -> Image.Image:
    """Returns the pixels of an opened file as RGB: of its first frame, turned as its EXIF data says, with
    what is transparent on white. Raises ImageProblem."""
    size = image.size
    try:
        image.load()
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
        pixels = _on_white(image)
        turned = pixels if turn is None else pixels.transpose(turn)
    except MemoryError as error:
        raise ImageProblem(TOO_LARGE) from error
    except Exception as error:
        raise ImageProblem("cannot be decoded: it is damaged, or not complete") from error
    if pixels.size != size:
        raise ImageProblem("cannot be decoded: its parts state different sizes")
    return turned


def _on_white(image: Image.Image) -> Image.Image:
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, (255, 255, 255, 255)), layer).convert("RGB")
