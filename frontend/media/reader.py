"""Puts the images of a prompt in place of their placeholders."""

from array import array
from collections.abc import Iterator, Sequence
from functools import cache

from PIL import Image

from frontend.errors import InvalidRequest
from frontend.media import decode
from frontend.media.family import ImageFamily, NotServed, Vectors
from frontend.media.files import file_of
from frontend.text.tokenizer import Encoding, Tokenizer
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.limits import MAX_MEDIA_BYTES, MAX_MEDIA_PIXELS
from pagewire.media import media_digest
from pagewire.v1 import prompt_pb2

NamedMedia = Sequence[tuple[str, prompt_pb2.Media]]
"""Media with their paths in a request."""


class ImageReader:
    """The images of a model. Methods may be called from several threads."""

    def __init__(self, family: ImageFamily, tokenizer: Tokenizer) -> None:
        """Raises NotServed where the vocabulary has no placeholder."""
        token = tokenizer.token_id(family.placeholder)
        if token is None:
            raise NotServed(f"the vocabulary has no token {family.placeholder}")
        self._family, self._tokenizer, self._token = family, tokenizer, token
        self._ids_of = cache(self._tokenize)

    @property
    def placeholder(self) -> str:
        """What stands for an image in the text of a prompt."""
        return self._family.placeholder

    def expand(
        self, encoding: Encoding, media: NamedMedia, path: str
    ) -> tuple[Encoding, list[engine_pb2.MediaItem]]:
        """Returns a prompt whose placeholders are the tokens of images, and what the encoder takes, in order
        of positions. path: of the field that has the media, for errors. Raises InvalidRequest."""
        count = encoding.token_ids.count(self._token)
        if count != len(media):
            problem = f"must be as many as the placeholders {self.placeholder} of the prompt: {count}"
            raise InvalidRequest({path: f"{problem}, not {len(media)}"})
        if not media:
            return encoding, []
        token_ids, added, offsets = array("I"), bytearray(), list[tuple[int, int]]()
        items: list[engine_pb2.MediaItem] = []
        images, num_bytes = self._opened(media), 0
        for place, token in enumerate(encoding.token_ids):
            ids: Sequence[int] = (token,)
            if token == self._token:
                ids, made = self._tokens_of(next(images), len(token_ids), path)
                num_bytes += sum(len(item.data) for item in made)
                if num_bytes > MAX_MEDIA_BYTES:
                    problem = f"are more than {MAX_MEDIA_BYTES} bytes in all as the encoder takes them"
                    raise InvalidRequest({path: problem})
                items += made
            token_ids.extend(ids)
            added += bytes((encoding.added[place],)) * len(ids)
            if encoding.offsets:
                offsets += [encoding.offsets[place]] * len(ids)
        return Encoding(token_ids, added, offsets), items

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

    def _tokens_of(
        self, image: Image.Image, start: int, path: str
    ) -> tuple["array[int]", list[engine_pb2.MediaItem]]:
        """Returns the tokens of an image, of which the first is at position `start`, and its items. path: of
        the field that has it. Raises InvalidRequest."""
        try:
            cut = self._family.cut(image)
        except MemoryError as error:
            raise InvalidRequest({path: decode.TOO_LARGE}) from error
        token_ids, positions = array("I"), [list[int]() for _ in cut.items]
        for piece in cut.pieces:
            if isinstance(piece, Vectors):
                begin = start + len(token_ids)
                positions[piece.item].extend(range(begin, begin + piece.count))
                token_ids.extend([self._token] * piece.count)
            else:
                token_ids.extend(self._ids_of(piece))
        return token_ids, list(map(_item, cut.items, positions))

    def _tokenize(self, text: str) -> list[int]:
        token = self._tokenizer.token_id(text)
        return [token] if token is not None else self._tokenizer.encode_following(text)


def _decoded(opened: tuple[str, Image.Image]) -> Image.Image:
    path, image = opened
    try:
        return decode.decode(image)
    except decode.ImageProblem as error:
        raise InvalidRequest({path: str(error)}) from error


def _item(image: Image.Image, positions: Sequence[int]) -> engine_pb2.MediaItem:
    kind, data = engine_pb2.MEDIA_KIND_IMAGE, image.tobytes()
    shape = (image.height, image.width, 3)
    digest = media_digest(kind, shape, data)
    return engine_pb2.MediaItem(
        kind=kind, shape=shape, data=data, digest=digest, positions=pack_u32(positions)
    )
