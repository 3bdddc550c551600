"""Puts the images and videos of a prompt in place of their placeholders."""

from collections.abc import Iterator, Sequence

from PIL import Image

from frontend.errors import InvalidRequest
from frontend.media import decode
from frontend.media.expansion import MediaReader, NamedMedia, Prepared
from frontend.media.family import Cut, ImageFamily, VideoFamily
from frontend.media.files import file_of
from frontend.text.tokenizer import Tokenizer
from pagewire.internal.v1 import engine_pb2
from pagewire.limits import MAX_MEDIA_PIXELS
from pagewire.media import media_digest
from pagewire.v1 import prompt_pb2


class ImageReader(MediaReader):
    """The images of a model, and its videos."""

    part_type = "image"

    def __init__(self, family: ImageFamily, tokenizer: Tokenizer) -> None:
        """Raises NotServed where the vocabulary has no placeholder."""
        super().__init__(family.placeholder, tokenizer)
        self._family, self._video, self._video_token = family, _videos_of(family), None
        if isinstance(self._video, VideoFamily):
            self._video_token = tokenizer.token_id(self._video.video_placeholder)
        if self._video_token is not None:
            self.tokens.add(self._video_token)

    @property
    def placeholders(self) -> str:
        if not isinstance(self._video, VideoFamily):
            return self.placeholder
        return f"{self.placeholder} and, of videos, {self._video.video_placeholder}"

    @property
    def no_videos(self) -> str:
        return self._video if isinstance(self._video, str) else ""

    def token_of(self, medium: prompt_pb2.Media) -> int | None:
        return self._video_token if medium.HasField("frames") else super().token_of(medium)

    def prepare(self, media: NamedMedia, path: str) -> Iterator[Prepared]:
        cuts = self._cuts(media, path)
        return (Prepared([_item(taken) for taken in cut.items], cut.pieces, cut.around) for cut in cuts)

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


def _item(taken: Image.Image | Sequence[Image.Image]) -> engine_pb2.MediaItem:
    kind, frames = engine_pb2.MEDIA_KIND_IMAGE, (taken,) if isinstance(taken, Image.Image) else taken
    data = b"".join(frame.tobytes() for frame in frames)
    size = (frames[0].height, frames[0].width, 3)
    shape = size if isinstance(taken, Image.Image) else (len(frames), *size)
    digest = media_digest(kind, shape, data)
    return engine_pb2.MediaItem(kind=kind, shape=shape, data=data, digest=digest)
