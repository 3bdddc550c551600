"""Puts the images of a prompt in place of their placeholders."""

from collections.abc import Iterator

from PIL import Image

from frontend.errors import InvalidRequest
from frontend.media import decode
from frontend.media.expansion import MediaReader, NamedMedia, Prepared
from frontend.media.family import Cut, ImageFamily
from frontend.media.files import file_of
from frontend.text.tokenizer import Tokenizer
from pagewire.internal.v1 import engine_pb2
from pagewire.limits import MAX_MEDIA_PIXELS
from pagewire.media import media_digest


class ImageReader(MediaReader):
    """The images of a model."""

    part_type = "image"

    def __init__(self, family: ImageFamily, tokenizer: Tokenizer) -> None:
        """Raises NotServed where the vocabulary has no placeholder."""
        super().__init__(family.placeholder, tokenizer)
        self._family = family

    def prepare(self, media: NamedMedia, path: str) -> Iterator[Prepared]:
        cuts = (self._cut(image, path) for image in self._opened(media))
        return (Prepared(list(map(_item, cut.items)), cut.pieces) for cut in cuts)

    def _opened(self, media: NamedMedia) -> Iterator[Image.Image]:
        """Yields the decoded images, all of which have been judged by their headers before."""
        opened, num_pixels = list[tuple[str, Image.Image]](), 0
        for path, each in media:
            try:
                image = decode.open_image(file_of(each))
            except decode.ImageProblem as error:
                raise InvalidRequest({path: str(error)}) from error
            num_pixels += image.width * image.height
            if num_pixels > MAX_MEDIA_PIXELS:
                problem = f"is one too many: images may have {MAX_MEDIA_PIXELS} pixels in all"
                raise InvalidRequest({path: problem})
            opened.append((path, image))
        return map(_decoded, opened)

    def _cut(self, image: Image.Image, path: str) -> Cut:
        """path: of the field that has the image. Raises InvalidRequest."""
        try:
            return self._family.cut(image)
        except MemoryError as error:
            raise InvalidRequest({path: decode.TOO_LARGE}) from error


def _decoded(opened: tuple[str, Image.Image]) -> Image.Image:
    path, image = opened
    try:
        return decode.decode(image)
    except decode.ImageProblem as error:
        raise InvalidRequest({path: str(error)}) from error


def _item(image: Image.Image) -> engine_pb2.MediaItem:
    kind, data = engine_pb2.MEDIA_KIND_IMAGE, image.tobytes()
    shape = (image.height, image.width, 3)
    digest = media_digest(kind, shape, data)
    return engine_pb2.MediaItem(kind=kind, shape=shape, data=data, digest=digest)
