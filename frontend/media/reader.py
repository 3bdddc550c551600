"""Puts the images of a prompt in place of their placeholders."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from PIL import Image

from frontend.errors import InvalidRequest, Unsupported
from frontend.media import decode
from frontend.media.family import Cut, ImageFamily, NotServed, Vectors, VideoFamily
from frontend.media.files import file_of
from frontend.text.tokenizer import Encoding, Tokenizer
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.limits import MAX_MEDIA_BYTES, MAX_MEDIA_PIXELS
from pagewire.media import media_digest
from pagewire.v1 import prompt_pb2

NamedMedia = Sequence[tuple[str, prompt_pb2.Media]]
"""Media with their paths in a request."""
_KEPT = 4096
"""Texts and tokens whose tokens and line breaks are remembered."""


class _Expanded:
    """The tokens of a prompt, read one by one, and those that are made of them."""

    def __init__(self, encoding: Encoding) -> None:
        self.token_ids = array("I")
        self._given, self._place = encoding, -1
        self._places = array("I")  # of the given token that each is made of

    @property
    def given(self) -> Sequence[int]:
        """The tokens of the prompt."""
        return self._given.token_ids

    def next_token(self) -> int | None:
        """Goes on to the next given token, and returns it; None: there is none."""
        self._place += 1
        return self._given.token_ids[self._place] if self._place < len(self._given.token_ids) else None

    def extend(self, token_ids: Sequence[int]) -> None:
        """Adds tokens in place of the given one."""
        self.token_ids.extend(token_ids)
        self._places.extend([self._place] * len(token_ids))

    def take_back(self, breaks_of: Callable[[int], int]) -> int:
        """Removes the line breaks that were added last. Returns how many."""
        count = 0
        while self.token_ids and (found := breaks_of(self.token_ids[-1])):
            count += found
            self.token_ids.pop()
            self._places.pop()
        return count

    def skip(self, breaks_of: Callable[[int], int]) -> int:
        """Goes on behind the line breaks that are given next. Returns how many."""
        count, given = 0, self._given.token_ids
        while self._place + 1 < len(given) and (found := breaks_of(given[self._place + 1])):
            count += found
            self._place += 1
        return count

    def absorb(self, before: int | None, after: int | None) -> None:
        """Takes back the token that was added last, and goes on behind the next one, if they are these."""
        given, following = self._given.token_ids, self._place + 1
        is_before = len(self.token_ids) > 0 and self.token_ids[-1] == before
        if is_before and following < len(given) and given[following] == after:
            self.token_ids.pop()
            self._places.pop()
            self._place += 1

    def encoding(self) -> Encoding:
        """Returns what was made."""
        given = self._given
        offsets = [given.offsets[place] for place in self._places] if given.offsets else []
        return Encoding(self.token_ids, bytes(given.added[place] for place in self._places), offsets)


class ImageReader:
    """The images of a model. Methods may be called from several threads."""

    def __init__(self, family: ImageFamily, tokenizer: Tokenizer) -> None:
        """Raises NotServed where the vocabulary has no placeholder."""
        token = tokenizer.token_id(family.placeholder)
        if token is None:
            raise NotServed(f"the vocabulary has no token {family.placeholder}")
        self._family, self._tokenizer, self._token = family, tokenizer, token
        self._video, self._video_token = _videos_of(family), None
        if isinstance(self._video, VideoFamily):
            self._video_token = tokenizer.token_id(self._video.video_placeholder)
        self._ids_of, self._breaks_of = lru_cache(_KEPT)(self._tokenize), lru_cache(_KEPT)(self._count_breaks)

    @property
    def placeholder(self) -> str:
        """What stands for an image in the text of a prompt."""
        return self._family.placeholder

    def expand(
        self, encoding: Encoding, media: NamedMedia, path: str
    ) -> tuple[Encoding, list[engine_pb2.MediaItem]]:
        """Returns a prompt whose placeholders are the tokens of images, and what the encoder takes, in order
        of positions. path: of the field that has the media, for errors. Raises InvalidRequest."""
        if isinstance(why := self._video, str):
            for where, each in media:
                if each.HasField("frames"):
                    raise Unsupported({where: f"is not served: {why}"})
        known = (self._token, self._video_token)
        placeholders = [token for token in encoding.token_ids if token in known]
        if (count := len(placeholders)) != len(media):
            problem = f"must be as many as the placeholders {self.placeholder} of the prompt: {count}"
            raise InvalidRequest({path: f"{problem}, not {len(media)}"})
        if not media:
            return encoding, []
        for token, (where, each) in zip(placeholders, media, strict=True):
            if (is_video := each.HasField("frames")) != (token == self._video_token):
                kinds = ("a video", "an image") if is_video else ("an image", "a video")
                raise InvalidRequest({where: f"is {kinds[0]}, and the prompt has {kinds[1]} in its place"})
        made, items = _Expanded(encoding), list[engine_pb2.MediaItem]()
        cuts, num_bytes = self._cuts(media, path), 0
        while (token := made.next_token()) is not None:
            if token not in known:
                made.extend((token,))
                continue
            found = self._put(next(cuts), made, path)
            num_bytes += sum(len(item.data) for item in found)
            if num_bytes > MAX_MEDIA_BYTES:
                problem = f"are more than {MAX_MEDIA_BYTES} bytes in all as the encoder takes them"
                raise InvalidRequest({path: problem})
            items += found
        return made.encoding(), items

    def _cuts(self, media: NamedMedia, path: str) -> Iterator[Cut]:
        """Yields what stands for each medium, all of which have been judged by their headers before. path: of
        the field that has them."""
        opened, num_pixels = list[list[tuple[str, Image.Image]]](), 0
        for where, each in media:
            images = [_open(*named) for named in _files(where, each)]
            num_pixels += sum(image.width * image.height for _, image in images)
            if num_pixels > MAX_MEDIA_PIXELS:
                problem = f"is one too many: images may have {MAX_MEDIA_PIXELS} pixels in all"
                raise InvalidRequest({where: problem})
            opened.append(images)
        return (self._cut(*each, path) for each in zip(media, opened, strict=True))

    def _cut(
        self, medium: tuple[str, prompt_pb2.Media], images: list[tuple[str, Image.Image]], path: str
    ) -> Cut:
        """path: of the field that has the medium. Raises InvalidRequest."""
        (where, given), decoded = medium, map(_decoded, images)
        try:
            if isinstance(self._video, VideoFamily) and given.HasField("frames"):
                return self._video.cut_video(decoded, given.frames.seconds)
            return self._family.cut(next(decoded))
        except MemoryError as error:
            raise InvalidRequest({path: decode.TOO_LARGE}) from error
        except decode.ImageProblem as error:
            raise InvalidRequest({where: str(error)}) from error

    def _put(self, cut: Cut, made: "_Expanded", path: str) -> list[engine_pb2.MediaItem]:
        """Adds the tokens of an image to a prompt. Returns its items. path: of the field that has it. Raises
        InvalidRequest."""
        positions = [list[int]() for _ in cut.items]
        if cut.around is not None:
            made.absorb(*map(self._tokenizer.token_id, cut.around))
        for number, piece in enumerate(cut.pieces):
            if isinstance(piece, Vectors):
                begin = len(made.token_ids)
                positions[piece.item].extend(range(begin, begin + piece.count))
                token = self._tokenizer.token_id(piece.token) if piece.token else self._token
                if token is None:
                    problem = f"are not served: the vocabulary has no token {piece.token}"
                    raise InvalidRequest({path: problem})
                if token not in (self._token, self._video_token) and token in made.given:
                    raise InvalidRequest(
                        {path: f"stand for tokens {piece.token} that the prompt has already"}
                    )
                made.extend([token] * piece.count)
                continue
            if piece.strip("\n") == "":
                piece += "\n" * (made.take_back(self._breaks_of) if number == 0 else 0)
                piece += "\n" * (made.skip(self._breaks_of) if number == len(cut.pieces) - 1 else 0)
            made.extend(self._ids_of(piece))
        return list(map(_item, cut.items, positions))

    def _count_breaks(self, token: int) -> int:
        """Returns how many line breaks a token is; 0 for one that is anything else."""
        text = self._tokenizer.token_bytes(token)
        return 0 if text.strip(b"\n") else len(text)

    def _tokenize(self, text: str) -> list[int]:
        token = self._tokenizer.token_id(text)
        return [token] if token is not None else self._tokenizer.encode_following(text)


def _videos_of(family: ImageFamily) -> VideoFamily | str:
    """Returns what cuts videos, or why there are none."""
    if isinstance(family, VideoFamily):
        return family.no_videos or family
    return "the model sees no videos"


def _files(path: str, media: prompt_pb2.Media) -> list[tuple[str, bytes]]:
    """Returns the files of a medium with their paths. path: of it."""
    if not media.HasField("frames"):
        return [(path, file_of(media))]
    return [(f"{path}.frames.files[{place}]", file) for place, file in enumerate(media.frames.files)]


def _open(path: str, file: bytes) -> tuple[str, Image.Image]:
    try:
        return path, decode.open_image(file)
    except decode.ImageProblem as error:
        raise InvalidRequest({path: str(error)}) from error


def _decoded(opened: tuple[str, Image.Image]) -> Image.Image:
    path, image = opened
    try:
        return decode.decode(image)
    except decode.ImageProblem as error:
        raise InvalidRequest({path: str(error)}) from error


def _item(taken: Image.Image | Sequence[Image.Image], positions: Sequence[int]) -> engine_pb2.MediaItem:
    kind, frames = engine_pb2.MEDIA_KIND_IMAGE, (taken,) if isinstance(taken, Image.Image) else taken
    data = b"".join(frame.tobytes() for frame in frames)
    size = (frames[0].height, frames[0].width, 3)
    shape = size if isinstance(taken, Image.Image) else (len(frames), *size)
    digest = media_digest(kind, shape, data)
    return engine_pb2.MediaItem(
        kind=kind, shape=shape, data=data, digest=digest, positions=pack_u32(positions)
    )
