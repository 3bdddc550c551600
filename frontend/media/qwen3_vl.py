"""Qwen3-VL and Qwen3.5: images as of Qwen2-VL; a video is pairs of frames, each behind its time as text."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil, floor, sqrt

from PIL import Image

from frontend.media.decode import ImageProblem
from frontend.media.family import Cut, ImageFiles, NotServed, Settings, Vectors, require_resize
from frontend.media.qwen_vl import MOST, QwenVL
from pagewire.limits import MAX_MEDIA_BYTES

_FRAMES = 2
"""Of an item."""
_SIZE = {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}
"""The least and the most pixels of all frames, which have these names."""
_PIXELS = {"do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255}


class Qwen3VL(QwenVL):
    """Qwen2VLImageProcessor of transformers, and Qwen3VLVideoProcessor for frames that clients choose, with
    the texts of their processor. Timestamps are tokenized by themselves."""

    def __init__(self, files: ImageFiles) -> None:
        """Raises NotServed."""
        super().__init__(files)
        self.video_placeholder = files.tokens.text("video_token", "<|video_pad|>")
        self._start = files.tokens.text("vision_start_token", "<|vision_start|>")
        self._end = files.tokens.text("vision_end_token", "<|vision_end|>")
        self.no_videos = ""
        try:
            self._read_videos(files)
        except NotServed as error:
            self.no_videos = str(error)

    def _read_videos(self, files: ImageFiles) -> None:
        videos, images = files.videos, files.images
        kind = videos.text("video_processor_type")
        if kind != "Qwen3VLVideoProcessor":
            raise NotServed(f"{videos.name}: there is no video processor {kind or '?'}")
        require_resize(videos)
        if videos.flag("cap_pixels_per_frame", False):
            raise NotServed(f"{videos.name}: cap_pixels_per_frame is true")
        sizes = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": _FRAMES}
        patch, merge, frames = (videos.whole(name, size) for name, size in sizes.items())
        if patch * merge != self.side or frames != _FRAMES:
            raise NotServed(f"{videos.name}: the encoder takes other patches")
        defaults = {**_PIXELS, "image_mean": None, "image_std": None}
        for name, default in defaults.items():
            if videos.values.get(name, default) != images.values.get(name, default):
                raise NotServed(f"{videos.name}: {name} is not that of images")
        self._resample_video = Image.Resampling(videos.resampling(self.resample))
        size = videos.part("size") if videos.has("size") else Settings(videos.name, _SIZE)
        self._least_of_video, most = (size.whole(name, below=MOST) for name in _SIZE)
        self._most_of_video = min(most, MAX_MEDIA_BYTES // 3)

    def cut_video(self, frames: Iterable[Image.Image], seconds: Sequence[float]) -> Cut:
        """Resizes the frames of a video, RGB images, two or more. seconds: when each is seen. Raises
        ImageProblem."""
        made, size, rows, columns = list[Image.Image](), (0, 0), 0, 0
        for frame in frames:
            if not made:
                size = frame.size
                rows, columns = self._squares_of_video(len(seconds), *reversed(size))
            if frame.size != size:
                raise ImageProblem("has frames of different sizes")
            made.append(frame.resize((columns * self.side, rows * self.side), self._resample_video))
        times = list(seconds)
        if len(made) % _FRAMES:
            made.append(made[-1])
            times.append(times[-1])
        pieces: list[str | Vectors] = []
        for item, (first, last) in enumerate(list(pairwise(times))[::_FRAMES]):
            vectors = Vectors(item, rows * columns, self.video_placeholder)
            pieces += f"<{(first + last) / 2:.1f} seconds>", self._start, vectors, self._end
        return Cut(list(zip(made[::2], made[1::2], strict=True)), pieces, (self._start, self._end))

    def _squares_of_video(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Returns rows and columns of vectors of a frame. count: of frames."""
        side = self.side
        if height < side or width < side:
            scale = max(side / height, side / width)
            height, width = int(height * scale), int(width * scale)
        rows, columns = round(height / side), round(width / side)
        pixels = round(count / _FRAMES) * _FRAMES * rows * columns * side * side
        if pixels > self._most_of_video:
            ratio = sqrt((count * height * width) / self._most_of_video)
            return max(1, floor(height / ratio / side)), max(1, floor(width / ratio / side))
        if pixels < self._least_of_video:
            ratio = sqrt(self._least_of_video / (count * height * width))
            return ceil(height * ratio / side), ceil(width * ratio / side)
        return rows, columns
