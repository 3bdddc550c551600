"""Images for tests, and their files."""

from io import BytesIO

from PIL import Image

MODES = ("RGB", "L", "RGBA", "P")


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Returns an image with edges and smooth parts, as large as wanted; RGBA and P are partly transparent."""
    bands = [
        Image.linear_gradient("L").rotate(90 * turn).resize((width, height), Image.Resampling.BICUBIC)
        for turn in range(3)
    ]
    image = Image.merge("RGB", bands)
    for place in range(0, width * height, 7):
        x, y = place % width, place // width
        image.putpixel((x, y), (place * 31 % 256, place * 17 % 256, place * 7 % 256))
    if mode == "RGBA":
        image.putalpha(Image.radial_gradient("L").resize((width, height)))
    elif mode == "P":
        image = image.quantize(64)
        image.info["transparency"] = 3
    return image if image.mode == mode else image.convert(mode)


def file_of(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """Returns the file of an image."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
