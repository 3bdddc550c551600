"""Files that look like images, made to hurt what decodes them."""

import struct
import zlib

from tests.frontend.media.pictures import file_of, picture

_PNG = b"\x89PNG\r\n\x1a\n"


def chunk(name: bytes, data: bytes) -> bytes:
    """Returns a chunk of a PNG."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, rows: bytes, *chunks: bytes, depth: int = 8, color: int = 0) -> bytes:
    """Returns a PNG with this header. rows: as they are compressed, each behind its filter. chunks: before
    the pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(rows, 9))
    return _PNG + chunk(b"IHDR", header) + b"".join(chunks) + data + chunk(b"IEND", b"")


def bomb(width: int, height: int) -> bytes:
    """Returns a PNG of black pixels, which zlib makes a thousand times smaller, one bit each."""
    return png(width, height, bytes((1 + (width + 7) // 8) * height), depth=1)


def gif_of_many_frames(count: int) -> bytes:
    """Returns a GIF of so many frames of one pixel."""
    frame = b"\x2c" + struct.pack("<4HB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return (
        b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(3) + b"\xff" * 3 + frame * count + b"\x3b"
    )


def exif_loop() -> bytes:
    """Returns a JPEG whose EXIF directory names itself as its next one and as its part."""
    entries = struct.pack("<HHIHxx", 0x0112, 3, 1, 6) + struct.pack("<HHII", 0x8769, 4, 1, 8)
    tiff = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 2) + entries + struct.pack("<I", 8)
    app1 = b"Exif\0\0" + tiff
    data = file_of(picture(20, 10), "JPEG")
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(app1) + 2) + app1 + data[2:]


def icc_bomb() -> bytes:
    """Returns a PNG whose color profile is 64 MiB of zeros, compressed to 64 KiB."""
    profile = b"name\0\0" + zlib.compress(bytes(64 << 20), 9)
    return png(2, 2, bytes(6), chunk(b"iCCP", profile))


def text_bomb() -> bytes:
    """Returns a PNG with ten texts of 64 MiB, each compressed to 64 KiB."""
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(64 << 20), 9))
    return png(2, 2, bytes(6), *[text] * 10)


def polyglot() -> bytes:
    """Returns a file that is a GIF and a script."""
    return b"GIF89a/*" + bytes(20) + b"*/=1;alert(1)"


SMALL_AND_LARGE = {
    "12,800 x 12,800": bomb(12_800, 12_800),
    "65,535 x 65,535": png(65_535, 65_535, b""),
    "2^31 x 1": png(2**31 - 1, 1, b""),
    "1 x 65,535": png(1, 65_535, b""),
    "0 x 0": png(0, 0, b""),
    "lying header": png(8000, 8000, b"\0"),
    "color profile": icc_bomb(),
    "texts": text_bomb(),
    "polyglot": polyglot(),
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n(/etc/passwd) run\n",
    "truncated": file_of(picture(300, 200))[:3000],
    "truncated JPEG": file_of(picture(300, 200), "JPEG")[:1500],
}
"""Files that are refused."""
READ = {
    "1 x 1": png(1, 1, bytes(2)),
    "10,000 frames": gif_of_many_frames(10_000),
    "EXIF loop": exif_loop(),
    "8,000 x 8,000": bomb(8000, 8000),
}
"""Files that are read, though they look odd."""
