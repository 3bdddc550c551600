"""Files of images: what is read, and what is refused before it is decoded."""

import hashlib
import io
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from frontend.media.decode import MODES, ImageProblem, decode, open_image
from pagewire.limits import MAX_MEDIA_PIXELS
from tests.frontend.media.pictures import file_of, picture


def decoded(data: bytes) -> Image.Image:
    return decode(open_image(data))


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_palettes_and_grays(kind: str, mode: str) -> None:
    image = picture(23, 17).convert(mode)
    assert decoded(file_of(image, kind)).tobytes() == image.convert("RGB").tobytes()


def test_what_is_transparent_is_white() -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    for kind in ("PNG", "WEBP"):
        assert decoded(file_of(image, kind, lossless=True)).tobytes() == bytes((255, 0, 0, 255, 255, 255))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpegs(mode: str) -> None:
    data = file_of(picture(40, 30).convert(mode), "JPEG")
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == mode
        assert decoded(data).tobytes() == image.convert("RGB").tobytes()


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_orientation_of_exif_counts(kind: str, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    data = file_of(picture(30, 20), kind, exif=exif)
    with Image.open(io.BytesIO(data)) as image:
        wanted = ImageOps.exif_transpose(image).convert("RGB")
    assert decoded(data).size == ((30, 20) if turn < 5 else (20, 30))
    assert decoded(data).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("turn", [0, 9, 65_535])
def test_an_orientation_without_a_meaning_counts_for_nothing(turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    assert decoded(file_of(picture(30, 20), "PNG", exif=exif)).size == (30, 20)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_counts(kind: str) -> None:
    frames = [Image.new("RGB", (9, 7), color) for color in ("red", "green", "blue")]
    data = file_of(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    assert decoded(data).tobytes() == frames[0].tobytes()


def test_sixteen_bits_of_colors_count_by_the_upper_eight() -> None:
    pixels = bytes((1, 200, 2, 100, 3, 50))  # one pixel: three channels, the upper byte first
    assert decoded(png(1, 1, pixels, depth=16, color=2)).tobytes() == bytes((1, 2, 3))


def png(width: int, height: int, pixels: bytes, depth: int = 8, color: int = 0) -> bytes:
    """Returns a PNG of these bytes, one row behind the other, whatever its header states."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    size = len(pixels) // max(height, 1)
    rows = b"".join(b"\0" + pixels[row * size : (row + 1) * size] for row in range(min(height, 1 << 14)))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


REFUSED = {
    "text": (b"an image", "is not a file"),
    "nothing": (b"", "is not a file"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "is not a file"),
    "bmp": (file_of(picture(4, 4), "BMP"), "is not a file"),
    "tiff": (file_of(picture(4, 4), "TIFF"), "is not a file"),
    "ppm": (file_of(picture(4, 4), "PPM"), "is not a file"),
    "gray of 16 bits": (png(1, 1, b"\1\2", depth=16), "pixels of the kind I;16"),
    "too many pixels": (png(1 << 13, (1 << 13) + 1, b""), f"more than {MAX_MEDIA_PIXELS}"),
    "too slim": (png(1, 201, bytes(201)), "over 200 times the other"),
    "1 x 65,535": (png(1, 65_535, b""), "over 200 times the other"),
    "lying header": (png(500, 500, bytes(10)), "damaged, or not complete"),
    "cut png": (file_of(picture(64, 64))[:-2000], "damaged, or not complete"),
    "cut jpeg": (file_of(picture(64, 64), "JPEG")[:-200], "damaged, or not complete"),
    "cut webp": (file_of(picture(64, 64), "WEBP")[:-100], "is not a file|damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    data, why = REFUSED[name]
    with pytest.raises(ImageProblem, match=why):
        decoded(data)


def test_no_pixels() -> None:
    with pytest.raises(ImageProblem):
        open_image(png(0, 0, b""))


def test_one_pixel() -> None:
    assert decoded(png(1, 1, b"\7")).tobytes() == b"\7\7\7"


def test_every_mode_is_one_that_these_formats_have() -> None:
    assert sorted(MODES) == ["1", "CMYK", "L", "LA", "P", "RGB", "RGBA", "RGBX"]


SAMPLES = Path(__file__).parent / "samples"
DIGESTS = {
    "picture.gif": "39a7645dd4f89915",
    "picture.jpg": "33f46e751ea983fd",
    "picture.png": "3b637bcb2f2d406b",
    "picture.webp": "26eb6f5fd20eeb74",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_files_decode_to_the_bits_that_they_decoded_to(name: str) -> None:
    """Fails where another version of Pillow, or another processor, makes other pixels of the same file."""
    pixels = decoded((SAMPLES / name).read_bytes())
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == DIGESTS[name]
